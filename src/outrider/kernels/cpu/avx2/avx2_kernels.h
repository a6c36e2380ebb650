// The kernel table for processors with AVX2, FMA and F16C.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::avx2 {

const KernelTable& Kernels();

}  // namespace outrider::cpu::avx2
