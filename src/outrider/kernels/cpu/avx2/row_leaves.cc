// Row kernels with AVX2. Elementwise results follow the reference's order of operations, so that
// rotate, narrow, widen and add_weighted give its bits; silu_mul differs by its exp, and rms_norm
// by the order of its sum: lane l of accumulator a (a < 4) takes the elements i with i % 32 = 8 a +
// l, in rising order, by FMA; then the accumulators are added as (a0 + a1) + (a2 + a3), then their
// lanes in a tree.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::avx2 {

void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* y) {
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                    _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int a = 0; a < 4; ++a) {
      const __m256 v = _mm256_loadu_ps(x + i + a * 8);
      sums[a] = _mm256_fmadd_ps(v, v, sums[a]);
    }
  }
  for (int a = 0; i < n; i += 8, ++a) {
    const __m256 v = Lanes(LanesAt(i, n)).Load(x + i);
    sums[a] = _mm256_fmadd_ps(v, v, sums[a]);
  }
  const __m256 lanes =
      _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
  const float sum = _mm_cvtss_f32(SumsOfLanes(lanes, lanes, lanes, lanes));
  const float mean = sum / static_cast<float>(n);
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const __m256 scale = _mm256_set1_ps(1.0f / root);
  for (i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    at.Store(y + i, _mm256_mul_ps(at.Load(weight + i), _mm256_mul_ps(at.Load(x + i), scale)));
  }
}

void SiluMulRow(const float* gate, const float* up, float limit, int64_t n, float* y) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 most = _mm256_set1_ps(limit);
  const __m256 least = _mm256_set1_ps(-limit);
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    const __m256 g = at.Load(gate + i);
    const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, Exp(_mm256_xor_ps(g, sign))));
    // With a NaN min and max give the second operand.
    const __m256 clamped = _mm256_max_ps(least, _mm256_min_ps(most, at.Load(up + i)));
    at.Store(y + i, _mm256_mul_ps(_mm256_min_ps(most, silu), clamped));
  }
}

void RotateRow(const float* cos, const float* sin, int64_t half, bool interleaved, float* x) {
  int64_t i = 0;
  if (interleaved) {
    for (; i + 4 <= half; i += 4) {
      // Lanes (a, b) of a pair: a' = a cos - b sin, b' = b cos + a sin.
      const __m256 pairs = _mm256_loadu_ps(x + 2 * i);
      const __m256 swapped = _mm256_permute_ps(pairs, 0xb1);
      const __m128 c4 = _mm_loadu_ps(cos + i);
      const __m128 s4 = _mm_loadu_ps(sin + i);
      const __m256 c = _mm256_set_m128(_mm_unpackhi_ps(c4, c4), _mm_unpacklo_ps(c4, c4));
      const __m256 s = _mm256_set_m128(_mm_unpackhi_ps(s4, s4), _mm_unpacklo_ps(s4, s4));
      const __m256 kept = _mm256_mul_ps(pairs, c);
      _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(kept, _mm256_mul_ps(swapped, s)));
    }
  } else {
    for (; i + 8 <= half; i += 8) {
      const __m256 a = _mm256_loadu_ps(x + i);
      const __m256 b = _mm256_loadu_ps(x + half + i);
      const __m256 c = _mm256_loadu_ps(cos + i);
      const __m256 s = _mm256_loadu_ps(sin + i);
      _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
      _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
    }
  }
  for (; i < half; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + half];
    const float rotated_a = a * cos[i] - b * sin[i];
    b = a * sin[i] + b * cos[i];
    a = rotated_a;
  }
}

void WidenRow(const BFloat16* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, WidenBFloat16(x + i));
  for (; i < n; ++i) {
    const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(x[i].bits) << 16);
    _mm_store_ss(y + i, _mm_castsi128_ps(bits));
  }
}

void NarrowRow(const float* x, int64_t n, BFloat16* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t count = LanesAt(i, n);
    const __m256i rounded = _mm256_castps_si256(RoundToBFloat16(Lanes(count).Load(x + i)));
    const __m256i upper = _mm256_srli_epi32(rounded, 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    if (count == 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), packed);
    } else {
      alignas(16) BFloat16 tail[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(tail), packed);
      for (int64_t j = 0; j < count; ++j) y[i + j] = tail[j];
    }
  }
}

void AddWeightedRows(const float* const* y, const float* weights, int64_t count, int64_t n,
                     float* out) {
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    __m256 sum = _mm256_setzero_ps();
    for (int64_t j = 0; j < count; ++j) {
      sum = _mm256_fmadd_ps(_mm256_set1_ps(weights[j]), at.Load(y[j] + i), sum);
    }
    at.Store(out + i, _mm256_add_ps(at.Load(out + i), sum));
  }
}

}  // namespace outrider::cpu::avx2
