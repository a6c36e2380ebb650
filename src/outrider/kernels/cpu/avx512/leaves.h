// The AVX-512 leaves. Call them only where DetectIsa() is at least kAvx512. Meaning:
// leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx512 {

inline constexpr int64_t kMostRowsOfCodes = 8;
void MultiplyPanels(const PanelProduct& product);
/// Multiplies up to kMostRowsOfCodes rows by kF4E2M1 panels.
void MultiplyFewRowsByFp4(const PanelProduct& product);
void WidenFp4Panel(const std::byte* codes, const uint8_t* exponents, int64_t cols, BFloat16* to);
void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to);
void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to);
void AttendKeys(const KeyBlock& block);
void AttendEntries(const EntryBlock& block);
void AttendInRowLanes(const EntryBlock& block);
void MergePartial(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                  float& max, float& sum, float* out);
void RoundToTiles(const float* const* x, int64_t rows, int64_t cols, BFloat16* tiles);
/// For measuring the machine: kFmaChains independent multiply-adds per round.
float RunFmaChains(int64_t rounds, float seed);

}  // namespace outrider::cpu::avx512
