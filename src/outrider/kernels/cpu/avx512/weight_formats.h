// How AVX-512 leaves read packed weights: one type per format (include in AVX-512 leaves only).
//
// A tile reads a panel in rounds of kRound k's, kRoundBytes bytes; Load<k> gives the 16 outputs of
// one of them. A complete sum goes through Finished once, before it is added to anything. Where
// many rows use a block of weights it is widened to the format Tiled first.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cpu/avx512/vectors.h"

namespace outrider::cpu::avx512 {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

/// What products of few rows, which wait for memory, read ahead of the multiplication into L1, over
/// all panels of a tile; and of each panel so much farther into L2.
inline constexpr int64_t kReadAheadBytes = 4096;
inline constexpr int64_t kFartherBytes = 1024;

inline __attribute__((always_inline)) void FetchAhead(const std::byte* line,
                                                      int64_t farther = kFartherBytes) {
  const auto* address = reinterpret_cast<const char*>(line);
  _mm_prefetch(address, _MM_HINT_T0);
  _mm_prefetch(address + farther, _MM_HINT_T1);
}

struct PlainWeights {
  static constexpr float kFactor = 0;  // there are no scales

  static __attribute__((always_inline)) __m512 Finished(__m512 sum, const float* /*scales*/,
                                                        int64_t /*panel*/) {
    return sum;
  }
};

struct Float32Weights : PlainWeights {
  using Tiled = Float32Weights;
  static constexpr int64_t kRound = 2;
  static constexpr int64_t kRoundBytes = 128;

  template <int kK>
  static __attribute__((always_inline)) __m512 Load(const std::byte* round) {
    return _mm512_load_ps(reinterpret_cast<const float*>(round) + kK * 16);
  }
};

/// Narrower weights in L1, widened; their sums are still to be finished.
template <typename W>
struct Widened : Float32Weights {
  static __attribute__((always_inline)) __m512 Finished(__m512 sum, const float* scales,
                                                        int64_t panel) {
    return W::Finished(sum, scales, panel);
  }
};

struct BFloat16Weights : PlainWeights {
  using Tiled = Widened<BFloat16Weights>;
  static constexpr int64_t kRound = 2;
  static constexpr int64_t kRoundBytes = 64;

  template <int kK>
  static __attribute__((always_inline)) __m512 Load(const std::byte* round) {
    return WidenHalf<kK>(round);
  }
};

/// An e4m3 code is a float16 times 2^8, subnormals included. (As the subnormal float32 that
/// avx2/weight_formats.h makes of it, it would cost Intel's processors 150 cycles.) Outputs come in
/// the order of the layout, 0 8 1 9 2 10 ..., and are put right at the end.
struct Fp8Weights {
  static constexpr float kFactor = 0x1p8F;  // of the scales that x is multiplied by
  using Tiled = Widened<Fp8Weights>;
  static constexpr int64_t kRound = 4;
  static constexpr int64_t kRoundBytes = 64;

  template <int kK>
  static __attribute__((always_inline)) __m512 Load(const std::byte* round) {
    const auto* pair = reinterpret_cast<const __m256i*>(round) + kK / 2;
    __m256i codes = _mm256_load_si256(pair);
    if constexpr (kK % 2 == 0) codes = _mm256_slli_epi16(codes, 8);
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(codes, 1), mask));
  }

  static __attribute__((always_inline)) __m512 Finished(__m512 sum, const float* /*scales*/,
                                                        int64_t /*panel*/) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm512_permutexvar_ps(order, sum);
  }
};

struct Int8Weights {
  static constexpr float kFactor = 0;  // there are none
  using Tiled = Widened<Int8Weights>;
  static constexpr int64_t kRound = 4;
  static constexpr int64_t kRoundBytes = 64;

  template <int kK>
  static __attribute__((always_inline)) __m512 Load(const std::byte* round) {
    const __m128i codes = _mm_load_si128(reinterpret_cast<const __m128i*>(round) + kK);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }

  static __attribute__((always_inline)) __m512 Finished(__m512 sum, const float* scales,
                                                        int64_t panel) {
    return _mm512_mul_ps(sum, _mm512_loadu_ps(scales + panel * 16));
  }
};

}  // namespace
}  // namespace outrider::cpu::avx512
