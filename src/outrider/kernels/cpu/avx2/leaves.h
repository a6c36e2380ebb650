// The AVX2 + FMA leaves. Call them only where DetectIsa() is at least kAvx2. Meaning:
// leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx2 {

void MultiplyPanels(const PanelProduct& product);
void RoundToBFloat16Row(const float* x, int64_t n, float* y);

}  // namespace outrider::cpu::avx2
