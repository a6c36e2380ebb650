// Panels of FP4 codes as panels of bfloat16 (PackedMatrix), for more rows than fp4_tile.h takes. A
// shift brings the codes of a pair of columns to the lowest bits of 16; a magnitude's two bytes are
// looked up, the scale is added to the exponent, and the sign is set.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx2 {

namespace {

constexpr int64_t kWordCols = 8;  // whose codes of a row are a word

/// The codes in the lowest bits of 16, whose scales are 2^(shift / 128), as bfloat16.
__m256i WidenCodes(__m256i codes, __m256i shift) {
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(7));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(8)), 12);
  // The lower byte of 0, 0.5, 1, 1.5, 2, 3, 4, 6 as bfloat16, then the upper one.
  const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x40, static_cast<char>(0x80),
      static_cast<char>(0xc0), 0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40));
  const __m256i index = _mm256_or_si256(
      magnitude, _mm256_or_si256(_mm256_slli_epi16(magnitude, 8), _mm256_set1_epi16(0x0800)));
  const __m256i unscaled = _mm256_shuffle_epi8(table, index);
  const __m256i is_zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());
  const __m256i scaled = _mm256_add_epi16(unscaled, _mm256_andnot_si256(is_zero, shift));
  return _mm256_or_si256(scaled, sign);
}

/// (e - 127) << 7 of eight rows, twice each.
__m256i ExponentShift(const uint8_t* exponents) {
  const __m256i wide =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents)));
  const __m256i twice = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 16));
  return _mm256_slli_epi16(_mm256_sub_epi16(twice, _mm256_set1_epi16(127)), 7);
}

}  // namespace

void WidenFp4Panel(const std::byte* codes, const uint8_t* exponents, int64_t cols, BFloat16* to) {
  auto* out = reinterpret_cast<__m256i*>(to);
  for (int64_t group = 0; group < cols; group += kFp4Group, exponents += kPanelRows) {
    const __m256i shifts[2] = {ExponentShift(exponents), ExponentShift(exponents + 8)};
    for (int64_t k = 0; k < kFp4Group; k += kWordCols) {
      for (int half = 0; half < 2; ++half, codes += 32) {
        __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
        for (int pair = 0; pair < kWordCols / 2; ++pair) {
          _mm256_store_si256(out + pair * 2 + half, WidenCodes(words, shifts[half]));
          words = _mm256_srli_epi16(words, 4);
        }
      }
      out += kWordCols;
    }
  }
}

}  // namespace outrider::cpu::avx2
