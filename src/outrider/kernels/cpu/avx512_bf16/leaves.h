// The leaves of processors with AVX-512 BF16 and VBMI, beside those of AVX-512. Call them only
// where DetectIsa() is at least kAvx512Bf16. Meaning: leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx512_bf16 {

/// Columns of 8-bit weights that are widened at a time, for kPanelGroup panels.
inline constexpr int64_t kWidenedCols = kWidenedWeights * 2 / (kPanelGroup * 16);

/// Products in unit order, of rows in tiles: one chain from zero over the columns, of each pair of
/// them the odd one first, with subnormal operands and results taken for zero. With kF8E4M3 the
/// columns that share a scale have such a sum, which is multiplied by it and added in one FMA.
void MultiplyByDots(const PanelProduct& product);

void AttendEntries(const EntryBlock& block);

/// For measuring the machine: kFmaChains independent VDPBF16PS per round.
float RunDotChains(int64_t rounds, float seed);

}  // namespace outrider::cpu::avx512_bf16
