// Panels of FP4 codes as panels of bfloat16 (PackedMatrix). A byte holds the codes of a row for two
// columns, which lie side by side as bfloat16: a code is looked up, and the scale is added to the
// exponent of what is not zero.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider::cpu::avx512 {

namespace {

constexpr int64_t kPairsOfGroup = kFp4Group / 2;

/// e2m1 codes as bfloat16, twice: the lookup takes the lower five bits of an index.
alignas(64) constexpr uint16_t kFp4Values[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

}  // namespace

void WidenFp4Panel(const std::byte* codes, const uint8_t* exponents, int64_t cols, BFloat16* to) {
  const __m512i values = _mm512_load_si512(kFp4Values);
  const __m512i magnitude_bits = _mm512_set1_epi16(7);
  for (int64_t group = 0; group < cols; group += kFp4Group, exponents += kPanelRows) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents)));
    const __m512i twice = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
    const __m512i shift = _mm512_slli_epi16(_mm512_sub_epi16(twice, _mm512_set1_epi16(127)), 7);
    for (int64_t pair = 0; pair < kPairsOfGroup; ++pair) {
      const __m512i bytes =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      // The lower four bits of each 16 are a code; the lookup takes five, and its table repeats.
      const __m512i spread = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
      const __mmask32 is_not_zero = _mm512_test_epi16_mask(spread, magnitude_bits);
      const __m512i unscaled = _mm512_permutexvar_epi16(spread, values);
      _mm512_storeu_si512(to, _mm512_mask_add_epi16(unscaled, is_not_zero, unscaled, shift));
      codes += kPanelRows;
      to += 2 * kPanelRows;
    }
  }
}

}  // namespace outrider::cpu::avx512
