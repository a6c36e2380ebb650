// The kernel table for processors with AVX-512 BF16 and VBMI.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu::avx512_bf16 {

const KernelTable& Kernels();

}  // namespace outrider::cpu::avx512_bf16
