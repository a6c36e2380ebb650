// Loops that do nothing but read memory or multiply and add in registers.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"

namespace outrider::cpu::avx2 {

namespace {

float SumOf(__m256 v) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  return lanes[0] + lanes[7];
}

}  // namespace

float ReadAll(const std::byte* data, int64_t bytes) {
  const auto* p = reinterpret_cast<const float*>(data);
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                    _mm256_setzero_ps()};
  for (int64_t j = 0; j < bytes / 4; j += 32) {
    for (int s = 0; s < 4; ++s) sums[s] = _mm256_xor_ps(sums[s], _mm256_load_ps(p + j + s * 8));
    _mm_prefetch(reinterpret_cast<const char*>(p + j) + 2048, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + j) + 2112, _MM_HINT_T0);
  }
  return SumOf(_mm256_xor_ps(_mm256_xor_ps(sums[0], sums[1]), _mm256_xor_ps(sums[2], sums[3])));
}

float RunFmaChains(int64_t rounds, float seed) {
  __m256 chains[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) chains[c] = _mm256_set1_ps(static_cast<float>(c) + seed);
  const __m256 a = _mm256_set1_ps(0.999F);
  const __m256 b = _mm256_set1_ps(0.001F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m256& chain : chains) chain = _mm256_fmadd_ps(chain, a, b);
  }
  __m256 sum = chains[0];
  for (int c = 1; c < kFmaChains; ++c) sum = _mm256_add_ps(sum, chains[c]);
  return SumOf(sum);
}

}  // namespace outrider::cpu::avx2
