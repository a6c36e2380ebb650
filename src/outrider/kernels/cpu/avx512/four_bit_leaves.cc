// Panels of NVFP4 codes as panels of bfloat16, and of INT4 codes as panels of float32
// (PackedMatrix). A code is looked up as a float and multiplied by the scale of its row, one row
// per lane.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/fp4_tiles.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx512 {

namespace {

alignas(64) constexpr float kInt4Floats[16] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                               0,  1,  2,  3,  4,  5,  6,  7};

/// e4m3 codes, which are not NaN, as floats: as halves they are 2^8 too small.
__m512 E4m3(const uint8_t* codes) {
  const __m256i wide =
      _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)), _mm512_set1_ps(256));
}

__m512 ScalesOfRows(const BFloat16* scales) {
  const __m256i narrow = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

/// A column of eight.
template <int kColumn>
__m512 Column(__m512i codes, __m512 values, __m512 scale) {
  constexpr auto kBit = static_cast<unsigned>(CodeBit(kColumn));
  return _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, kBit), values), scale);
}

template <int kColumn>
void StorePairs(__m512i codes, __m512 values, __m512 scale, BFloat16* to) {
  if constexpr (kColumn < kFp4WordCols) {
    const __m512i even = _mm512_castps_si512(Column<kColumn>(codes, values, scale));
    const __m512i odd = _mm512_castps_si512(Column<kColumn + 1>(codes, values, scale));
    // The lower halves of both are zero.
    _mm512_store_si512(to + kColumn * kPanelRows,
                       _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
    StorePairs<kColumn + 2>(codes, values, scale, to);
  }
}

template <int kColumn>
void StoreColumns(__m512i codes, __m512 values, __m512 scale, float* to) {
  if constexpr (kColumn < kFp4WordCols) {
    _mm512_store_ps(to + kColumn * kPanelRows, Column<kColumn>(codes, values, scale));
    StoreColumns<kColumn + 1>(codes, values, scale, to);
  }
}

}  // namespace

void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to) {
  const __m512 values = _mm512_load_ps(kFp4Floats);
  for (int64_t group = 0; group < cols; group += kNvfp4Group, scales += kPanelRows) {
    const __m512 scale = E4m3(scales);
    for (int64_t k = 0; k < kNvfp4Group; k += kFp4WordCols) {
      StorePairs<0>(_mm512_load_si512(codes), values, scale, to);
      codes += kFp4WordBytes;
      to += kFp4WordCols * kPanelRows;
    }
  }
}

void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to) {
  const __m512 values = _mm512_load_ps(kInt4Floats);
  for (int64_t group = 0; group < cols; group += kInt4Group, scales += kPanelRows) {
    const __m512 scale = ScalesOfRows(scales);
    for (int64_t k = 0; k < kInt4Group; k += kFp4WordCols) {
      StoreColumns<0>(_mm512_load_si512(codes), values, scale, to);
      codes += kFp4WordBytes;
      to += kFp4WordCols * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx512
