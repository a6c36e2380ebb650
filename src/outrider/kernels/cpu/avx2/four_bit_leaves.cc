// Panels of NVFP4 codes as panels of bfloat16, and of INT4 codes as panels of float32
// (PackedMatrix). A code is made a float and multiplied by the scale of its row, one row per lane.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kHalf = kPanelRows / 2;  // rows of a vector
constexpr int64_t kWordCols = 8;           // whose codes of a row are a word

__m256i Words(const std::byte* codes) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
}

/// e4m3 codes, which are not NaN, as floats: as halves they are 2^8 too small.
__m256 E4m3(const uint8_t* codes) {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7);
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)), _mm256_set1_ps(256));
}

__m256 ScalesOfRows(const BFloat16* scales) {
  const __m128i narrow = _mm_load_si128(reinterpret_cast<const __m128i*>(scales));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

/// The e2m1 codes in the lower four bits of each lane.
__m256 E2m1(__m256i bits) {
  const __m256 magnitudes = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  // The lookup takes three bits.
  const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, bits);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}

/// The codes of INT4 in the lower four bits of each lane.
__m256 Int4(__m256i bits) {
  const __m256i code = _mm256_and_si256(bits, _mm256_set1_epi32(0xf));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(8)));
}

template <int kColumn>
__m256i Code(__m256i words) {
  return _mm256_srli_epi32(words, static_cast<int>(CodeBit(kColumn)));
}

/// Eight columns of half a panel, in pairs.
template <int kColumn>
void StorePairs(__m256i words, __m256 scale, BFloat16* to) {
  if constexpr (kColumn < kWordCols) {
    const __m256 even = _mm256_mul_ps(E2m1(Code<kColumn>(words)), scale);
    const __m256 odd = _mm256_mul_ps(E2m1(Code<kColumn + 1>(words)), scale);
    // The lower halves of both are zero.
    const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(even), 16);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + kColumn * kPanelRows),
                       _mm256_or_si256(low, _mm256_castps_si256(odd)));
    StorePairs<kColumn + 2>(words, scale, to);
  }
}

/// Eight columns of half a panel.
template <int kColumn>
void StoreColumns(__m256i words, __m256 scale, float* to) {
  if constexpr (kColumn < kWordCols) {
    _mm256_store_ps(to + kColumn * kPanelRows, _mm256_mul_ps(Int4(Code<kColumn>(words)), scale));
    StoreColumns<kColumn + 1>(words, scale, to);
  }
}

}  // namespace

void WidenNvfp4Panel(const std::byte* codes, const uint8_t* scales, int64_t cols, BFloat16* to) {
  for (int64_t group = 0; group < cols; group += kNvfp4Group, scales += kPanelRows) {
    const __m256 low = E4m3(scales);
    const __m256 high = E4m3(scales + kHalf);
    for (int64_t k = 0; k < kNvfp4Group; k += kWordCols) {
      StorePairs<0>(Words(codes), low, to);
      StorePairs<0>(Words(codes + 32), high, to + 2 * kHalf);
      codes += 64;
      to += kWordCols * kPanelRows;
    }
  }
}

void WidenInt4Panel(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to) {
  for (int64_t group = 0; group < cols; group += kInt4Group, scales += kPanelRows) {
    const __m256 low = ScalesOfRows(scales);
    const __m256 high = ScalesOfRows(scales + kHalf);
    for (int64_t k = 0; k < kInt4Group; k += kWordCols) {
      StoreColumns<0>(Words(codes), low, to);
      StoreColumns<0>(Words(codes + 32), high, to + kHalf);
      codes += 64;
      to += kWordCols * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx2
