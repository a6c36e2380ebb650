// A loop that does nothing but multiply bfloat16 in registers.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512_bf16/leaves.h"

namespace outrider::cpu::avx512_bf16 {

float RunDotChains(int64_t rounds, float seed) {
  __m512 chains[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) chains[c] = _mm512_set1_ps(static_cast<float>(c) + seed);
  const auto small = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3a83));  // 0.001
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& chain : chains) chain = _mm512_dpbf16_ps(chain, small, small);
  }
  __m512 sum = chains[0];
  for (int c = 1; c < kFmaChains; ++c) sum = _mm512_add_ps(sum, chains[c]);
  return _mm512_reduce_add_ps(sum);
}

}  // namespace outrider::cpu::avx512_bf16
