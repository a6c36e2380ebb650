// Rows of floats rounded to bfloat16 and laid in tiles.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/avx512/leaves.h"

namespace outrider::cpu::avx512 {

namespace {

using avx2::Least;

/// Sixteen floats rounded to the nearest bfloat16 (ties to even); NaN stays NaN. (VCVTNEPS2BF16
/// would take subnormal floats that round to a normal number for zero.)
inline __m256i RoundToBFloat16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
}

}  // namespace

void RoundToTiles(const float* const* x, int64_t rows, int64_t cols, BFloat16* tiles) {
  for (int64_t k = 0; k < cols; k += kTileCols) {
    const int64_t count = Least(kTileCols, cols - k);
    const uint32_t exist = count == kTileCols ? ~0U : (1U << count) - 1;
    const auto low = static_cast<__mmask16>(exist);
    const auto high = static_cast<__mmask16>(exist >> 16);
    for (int64_t r = 0; r < rows; ++r) {
      auto* to = reinterpret_cast<__m256i*>(tiles + k * rows + r * kTileCols);
      _mm256_storeu_si256(to, RoundToBFloat16(_mm512_maskz_loadu_ps(low, x[r] + k)));
      _mm256_storeu_si256(to + 1, RoundToBFloat16(_mm512_maskz_loadu_ps(high, x[r] + k + 16)));
    }
  }
}

}  // namespace outrider::cpu::avx512
