// Panels of NVFP4 codes as panels of bfloat16, and of INT4 codes as panels of float32
// (PackedMatrix). A code is made a float and multiplied by the scale of its row, one row per lane.
// A byte holds the codes of a row for two columns.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kHalf = kPanelRows / 2;  // rows of a vector

__m256i Bytes(const void* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}

/// e4m3 codes, which are not NaN, as floats: as halves they are 2^8 too small.
__m256 E4m3(const uint8_t* codes) {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7);
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)), _mm256_set1_ps(256));
}

/// The e2m1 codes in the lower four bits of each lane.
__m256 E2m1(__m256i bits) {
  const __m256 magnitudes = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  // The lookup takes three bits.
  const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, bits);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}

/// Eight rows of two columns.
__m256i ScaledPairs(const std::byte* codes, __m256 scale) {
  const __m256i bytes = Bytes(codes);
  const __m256 even = _mm256_mul_ps(E2m1(bytes), scale);
  const __m256 odd = _mm256_mul_ps(E2m1(_mm256_srli_epi32(bytes, 4)), scale);
  // The lower halves of both are zero.
  return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(even), 16),
                         _mm256_castps_si256(odd));
}

__m256 Widened(const BFloat16* scales) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales))), 16));
}

/// Eight rows of two columns, kPanelRows apart.
void StoreScaled(const std::byte* codes, __m256 scale, float* to) {
  const __m256i eight = _mm256_set1_epi32(8);
  const __m256i bytes = Bytes(codes);
  const __m256i even = _mm256_sub_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0xf)), eight);
  const __m256i odd = _mm256_sub_epi32(_mm256_srli_epi32(bytes, 4), eight);
  _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(even), scale));
  _mm256_storeu_ps(to + kPanelRows, _mm256_mul_ps(_mm256_cvtepi32_ps(odd), scale));
}

}  // namespace

void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to) {
  for (int64_t group = 0; group < cols; group += kNvfp4Group, scales += kPanelRows) {
    const __m256 low = E4m3(scales);
    const __m256 high = E4m3(scales + kHalf);
    for (int64_t pair = 0; pair < kNvfp4Group / 2; ++pair) {
      auto* out = reinterpret_cast<__m256i*>(to);
      _mm256_storeu_si256(out, ScaledPairs(codes, low));
      _mm256_storeu_si256(out + 1, ScaledPairs(codes + kHalf, high));
      codes += kPanelRows;
      to += 2 * kPanelRows;
    }
  }
}

void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to) {
  for (int64_t group = 0; group < cols; group += kInt4Group, scales += kPanelRows) {
    const __m256 low = Widened(scales);
    const __m256 high = Widened(scales + kHalf);
    for (int64_t pair = 0; pair < kInt4Group / 2; ++pair) {
      StoreScaled(codes, low, to);
      StoreScaled(codes + kHalf, high, to + kHalf);
      codes += kPanelRows;
      to += 2 * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx2
