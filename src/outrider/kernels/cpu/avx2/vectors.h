// Eight floats at a time: tails, rounding and exp, shared by the AVX2 leaves (include there only).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace outrider::cpu::avx2 {
namespace {  // one copy per leaf file: these must not become shared symbols with AVX2 code

/// All ones in the first n lanes, 0 <= n <= 8.
inline __m256i TailMask(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// x rounded to the nearest bfloat16 (ties to even), as float; NaN stays NaN.
inline __m256 RoundToBFloat16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
  return _mm256_castsi256_ps(
      _mm256_and_si256(result, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

}  // namespace
}  // namespace outrider::cpu::avx2
