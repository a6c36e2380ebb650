// Sixteen floats at a time, shared by the AVX-512 leaves (include there only).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx512 {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

/// sum += a * b, fused, in the register that holds the sum.
inline __attribute__((always_inline)) void MultiplyAdd(__m512 a, __m512 b, __m512& sum) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

/// The finished sums of a panel's outputs for one row go to y, or are added to what is there;
/// `columns` are those that exist from the panel's first on.
inline __attribute__((always_inline)) void StoreSums(__m512 sums, int64_t columns, bool accumulate,
                                                     float* y) {
  const auto mask = static_cast<__mmask16>(columns < 16 ? 0xffffU >> (16 - columns) : 0xffffU);
  if (accumulate) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sums);
  _mm512_mask_storeu_ps(y, mask, sums);
}

/// The lower eight lanes plus the upper.
inline __attribute__((always_inline)) __m256 AddHalves(__m512 x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

/// Like avx2::EightLanes, of rows at any address; sums of lanes add neighbours first, halves last.
struct SixteenLanes {
  using Vector = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr bool kDots = false;

  static __attribute__((always_inline)) Vector Zero() { return _mm512_setzero_ps(); }
  static __attribute__((always_inline)) Vector Load(const float* x) { return _mm512_loadu_ps(x); }
  static __attribute__((always_inline)) void Store(float* x, Vector v) { _mm512_storeu_ps(x, v); }
  static __attribute__((always_inline)) Vector Broadcast(const float* x) {
    return _mm512_set1_ps(*x);
  }
  static __attribute__((always_inline)) void MultiplyAdd(Vector a, Vector b, Vector& sum) {
    avx512::MultiplyAdd(a, b, sum);
  }
  static __attribute__((always_inline)) __m128 SumsOfLanes(Vector a, Vector b, Vector c, Vector d) {
    const Vector ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Vector cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m256 halves =
        AddHalves(_mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee)));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  }
};

/// Widens those of 32 bfloat16 in memory that have an even index (parity 0) or an odd one.
template <int kParity>
inline __attribute__((always_inline)) __m512 WidenHalf(const std::byte* from) {
  const __m512i both = _mm512_loadu_si512(from);
  if constexpr (kParity == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return _mm512_castsi512_ps(_mm512_and_si512(both, upper));
}

}  // namespace
}  // namespace outrider::cpu::avx512
