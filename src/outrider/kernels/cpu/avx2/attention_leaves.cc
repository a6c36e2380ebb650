// Attention over a block of keys with AVX2 and FMA: key_attention.h with eight lanes. Merging of
// partial softmaxes.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/leaves.h"
#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/key_attention.h"

namespace outrider::cpu::avx2 {

namespace {

struct KeyIsa : EightLanes {
  static constexpr int kTileKeys = 3;
  static constexpr int kTileVectors = 3;
};

}  // namespace

void AttendKeys(const KeyBlock& block) { AttendKeysWith<KeyIsa>(block); }

void MergePartial(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                  float& max, float& sum, float* out) {
  const auto [keep, take] = MergeSums(partial_max, partial_sum, max, sum);
  const __m256 keep8 = _mm256_set1_ps(keep);
  const __m256 take8 = _mm256_set1_ps(take);
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    const __m256 kept = _mm256_mul_ps(at.Load(out + i), keep8);
    at.Store(out + i, _mm256_add_ps(kept, _mm256_mul_ps(at.Load(partial_out + i), take8)));
  }
}

void DivideRow(float divisor, int64_t n, float* x) {
  const __m256 d = _mm256_set1_ps(divisor);
  for (int64_t i = 0; i < n; i += 8) {
    const Lanes at(LanesAt(i, n));
    at.Store(x + i, _mm256_div_ps(at.Load(x + i), d));
  }
}

}  // namespace outrider::cpu::avx2
