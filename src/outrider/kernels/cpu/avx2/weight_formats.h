// How AVX2 leaves read packed weights: one type per format (include in AVX2 leaves only).
//
// A tile reads a panel in rounds of kRound k's, kRoundBytes bytes. 8-bit formats come by pairs of
// k's, 32 bytes: Unpack gives their 2 k's x 2 halves of the 16 outputs, or of what Order makes
// those halves. Scale is due once, when the chain of a sum is complete.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace outrider::cpu::avx2 {
// One copy per leaf file: these must not become shared symbols with AVX2 code.
namespace {  // NOLINT(google-build-namespaces)

/// What formats without scales do.
struct PlainWeights {
  static __attribute__((always_inline)) void Order(__m256& /*low*/, __m256& /*high*/) {}
  static __attribute__((always_inline)) void Scale(const float* /*scales*/, int64_t /*panel*/,
                                                   __m256& /*low*/, __m256& /*high*/) {}
};

struct Float32Weights : PlainWeights {
  static constexpr int64_t kRound = 2;
  static constexpr int64_t kRoundBytes = 128;
  static constexpr bool kIsEightBit = false;

  /// The 8 weights of one half of a panel at the even (parity 0) or odd k of a pair.
  template <int kParity>
  static __attribute__((always_inline)) __m256 Load(const std::byte* pair, int half) {
    return _mm256_load_ps(reinterpret_cast<const float*>(pair) + kParity * 16 + half * 8);
  }
};

struct BFloat16Weights : PlainWeights {
  static constexpr int64_t kRound = 2;
  static constexpr int64_t kRoundBytes = 64;
  static constexpr bool kIsEightBit = false;

  template <int kParity>
  static __attribute__((always_inline)) __m256 Load(const std::byte* pair, int half) {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair) + half);
    if constexpr (kParity == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(both, upper));
  }
};

struct EightBitWeights : PlainWeights {
  static constexpr int64_t kRound = 4;
  static constexpr int64_t kRoundBytes = 64;
  static constexpr bool kIsEightBit = true;
  static constexpr float kFactor = 0;  // of scales that x is multiplied by; 0: there are none
};

/// An e4m3 code whose sign goes to the sign of a float and whose other bits to the lowest bits of
/// its exponent and the highest of its mantissa is that float times 2^120, e4m3's subnormals
/// included: they become subnormal floats, which AMD's processors multiply at full speed. The
/// factor is taken apart: 2^80 in x, 2^40 at the end, so that neither x nor a sum leaves the range
/// of a float.
struct Fp8Weights : EightBitWeights {
  static constexpr float kFactor = 0x1p80F;

  static __attribute__((always_inline)) void Unpack(const std::byte* pair,
                                                    __m256 (&weights)[2][2]) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x87f00000));
    const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair));
    // The upper 8 of every 16 bits are the odd k's: at their place after an arithmetic shift by 4.
    const __m256i odd = _mm256_srai_epi16(codes, 4);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4);
    weights[0][0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(even, 16), mask));
    weights[0][1] = _mm256_castsi256_ps(_mm256_and_si256(even, mask));
    weights[1][0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(odd, 16), mask));
    weights[1][1] = _mm256_castsi256_ps(_mm256_and_si256(odd, mask));
  }

  static __attribute__((always_inline)) void Scale(const float* /*scales*/, int64_t /*panel*/,
                                                   __m256& low, __m256& high) {
    const __m256 factor = _mm256_set1_ps(0x1p40F);
    low = _mm256_mul_ps(low, factor);
    high = _mm256_mul_ps(high, factor);
  }
};

/// Reads by way of float16: an e4m3 code is a float16 times 2^8, subnormals included, and their
/// conversion takes no longer. Outputs come in the order 0 8 1 9 2 10 3 11, 4 12 5 13 6 14 7 15.
struct Fp8AsFloat16Weights : EightBitWeights {
  static constexpr float kFactor = 0x1p8F;

  static __attribute__((always_inline)) void Unpack(const std::byte* pair,
                                                    __m256 (&weights)[2][2]) {
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair));
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(codes, 1), mask);
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 1), mask);
    weights[0][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(even));
    weights[0][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1));
    weights[1][0] = _mm256_cvtph_ps(_mm256_castsi256_si128(odd));
    weights[1][1] = _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1));
  }

  static __attribute__((always_inline)) void Order(__m256& low, __m256& high) {
    const __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    const __m256d second = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));
    low = _mm256_castpd_ps(_mm256_permute4x64_pd(first, 0xd8));
    high = _mm256_castpd_ps(_mm256_permute4x64_pd(second, 0xd8));
  }
};

struct Int8Weights : EightBitWeights {
  static __attribute__((always_inline)) void Unpack(const std::byte* pair,
                                                    __m256 (&weights)[2][2]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair + 8 * i));
      weights[i / 2][i % 2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    }
  }

  static __attribute__((always_inline)) void Scale(const float* scales, int64_t panel, __m256& low,
                                                   __m256& high) {
    low = _mm256_mul_ps(low, _mm256_loadu_ps(scales + panel * 16));
    high = _mm256_mul_ps(high, _mm256_loadu_ps(scales + panel * 16 + 8));
  }
};

}  // namespace
}  // namespace outrider::cpu::avx2
