// A loop that does nothing but multiply and add in registers.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/leaves.h"

namespace outrider::cpu::avx512 {

float RunFmaChains(int64_t rounds, float seed) {
  __m512 chains[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) chains[c] = _mm512_set1_ps(static_cast<float>(c) + seed);
  const __m512 a = _mm512_set1_ps(0.999F);
  const __m512 b = _mm512_set1_ps(0.001F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& chain : chains) chain = _mm512_fmadd_ps(chain, a, b);
  }
  __m512 sum = chains[0];
  for (int c = 1; c < kFmaChains; ++c) sum = _mm512_add_ps(sum, chains[c]);
  return _mm512_reduce_add_ps(sum);
}

}  // namespace outrider::cpu::avx512
