// The leaves of processors with AVX-512 BF16 and VBMI, beside those of AVX-512. Call them only
// where DetectIsa() is at least kAvx512Bf16. Meaning: leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx512_bf16 {

/// Columns of 8-bit weights that are widened at a time, for kPanelGroup panels.
inline constexpr int64_t kWidenedCols = kWidenedWeights * 2 / (kPanelGroup * 16);

/// Products of rows in tiles, in the order of sums of VDPBF16PS (MatMulJob defines it).
void MultiplyByDots(const PanelProduct& product);

/// Multiplies up to kMostRowsOfFp4 rows by kF4E2M1 panels.
inline constexpr int64_t kMostRowsOfFp4 = 8;
void MultiplyFewRowsByFp4(const PanelProduct& product);

void AttendEntries(const EntryBlock& block);

/// For measuring the machine: kFmaChains independent VDPBF16PS per round.
float RunDotChains(int64_t rounds, float seed);

}  // namespace outrider::cpu::avx512_bf16
