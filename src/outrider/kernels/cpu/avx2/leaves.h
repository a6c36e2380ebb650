// The AVX2 + FMA leaves. Call them only where DetectIsa() is at least kAvx2. Meaning:
// leaf_kernels.h.
#pragma once

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu::avx2 {

/// Rows up to which codes of 8 bits are widened in registers, for each tile of rows anew.
inline constexpr int64_t kMostRowsOfCodes = 16;
/// Most rows that panels of kF4E2M1 are multiplied with.
inline constexpr int64_t kMostRowsOfFp4 = 4;
void MultiplyPanels(const PanelProduct& product);
void WidenFp4Panel(const std::byte* codes, const uint8_t* exponents, int64_t cols, BFloat16* to);
void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to);
void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to);
void ScaleRow(const float* x, const float* scales, int64_t group, int64_t n, float* y);
/// For processors that subnormal factors slow down: e4m3 codes are read as float16.
void MultiplyPanelsByFloat16(const PanelProduct& product);
void ScaleRowForFloat16(const float* x, const float* scales, int64_t group, int64_t n, float* y);
/// `count` rounds of multiply-adds with this factor, for timing it; returns a sum.
float MultiplyByFactor(float factor, int64_t count);
/// For measuring the machine. Reads `bytes`, a multiple of 128, from 64-byte aligned data; the
/// second runs kFmaChains independent multiply-adds per round. The result is there to be used.
float ReadAll(const std::byte* data, int64_t bytes);
float RunFmaChains(int64_t rounds, float seed);

void RoundToBFloat16Row(const float* x, int64_t n, float* y);

void AttendKeys(const KeyBlock& block);
void AttendEntries(const EntryBlock& block);
void MergePartial(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                  float& max, float& sum, float* out);
void DivideRow(float divisor, int64_t n, float* x);

void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* y);
void SiluMulRow(const float* gate, const float* up, float limit, int64_t n, float* y);
void RotateRow(const float* cos, const float* sin, int64_t half, bool interleaved, float* x);
void WidenRow(const BFloat16* x, int64_t n, float* y);
void NarrowRow(const float* x, int64_t n, BFloat16* y);
void AddWeightedRows(const float* const* y, const float* weights, int64_t count, int64_t n,
                     float* out);

}  // namespace outrider::cpu::avx2
