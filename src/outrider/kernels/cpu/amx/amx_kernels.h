// The kernel table for processors with AVX-512 and AMX for bfloat16.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::amx {

const KernelTable& Kernels();

}  // namespace outrider::cpu::amx
