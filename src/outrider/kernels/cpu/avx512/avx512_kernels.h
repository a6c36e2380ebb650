// The kernel table for processors with AVX-512 F, BW, VL and DQ.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::avx512 {

const KernelTable& Kernels();

}  // namespace outrider::cpu::avx512
