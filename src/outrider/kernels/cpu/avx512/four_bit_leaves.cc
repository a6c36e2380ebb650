// Panels of NVFP4 codes as panels of bfloat16, and of INT4 codes as panels of float32
// (PackedMatrix). A code is looked up as a float and multiplied by the scale of its row, one row
// per lane. A byte holds the codes of a row for two columns.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx512 {

namespace {

alignas(64) constexpr float kE2m1[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                         -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

__m512i Bytes(const void* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

/// e4m3 codes, which are not NaN, as floats: as halves they are 2^8 too small.
__m512 E4m3(const uint8_t* codes) {
  const __m256i wide =
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)), _mm512_set1_ps(256));
}

}  // namespace

void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to) {
  const __m512 values = _mm512_load_ps(kE2m1);
  for (int64_t group = 0; group < cols; group += kNvfp4Group, scales += kPanelRows) {
    const __m512 scale = E4m3(scales);
    for (int64_t pair = 0; pair < kNvfp4Group / 2; ++pair) {
      const __m512i bytes = Bytes(codes);
      const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(bytes, values), scale);
      const __m512 odd =
          _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values), scale);
      // The lower halves of both are zero.
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
      _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_castps_si512(odd)));
      codes += kPanelRows;
      to += 2 * kPanelRows;
    }
  }
}

void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to) {
  const __m512i lower = _mm512_set1_epi32(0xf);
  const __m512i eight = _mm512_set1_epi32(8);
  for (int64_t group = 0; group < cols; group += kInt4Group, scales += kPanelRows) {
    const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales))), 16));
    for (int64_t pair = 0; pair < kInt4Group / 2; ++pair) {
      const __m512i bytes = Bytes(codes);
      const __m512i even = _mm512_sub_epi32(_mm512_and_si512(bytes, lower), eight);
      const __m512i odd = _mm512_sub_epi32(_mm512_srli_epi32(bytes, 4), eight);
      _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(even), scale));
      _mm512_storeu_ps(to + kPanelRows, _mm512_mul_ps(_mm512_cvtepi32_ps(odd), scale));
      codes += kPanelRows;
      to += 2 * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx512
