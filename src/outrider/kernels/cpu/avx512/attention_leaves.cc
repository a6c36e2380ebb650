// Attention over a block of keys with AVX-512: key_attention.h with sixteen lanes, whose halves are
// added first in a score. Merging of partial softmaxes.

#include <immintrin.h>

#include "outrider/kernels/cpu/avx2/vectors.h"
#include "outrider/kernels/cpu/avx512/leaves.h"
#include "outrider/kernels/cpu/avx512/vectors.h"
#include "outrider/kernels/cpu/key_attention.h"

namespace outrider::cpu::avx512 {

namespace {

struct KeyIsa : SixteenLanes {
  static constexpr int kTileKeys = 4;
  static constexpr int kTileVectors = 4;
};

}  // namespace

void AttendKeys(const KeyBlock& block) { AttendKeysWith<KeyIsa>(block); }

void MergePartial(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                  float& max, float& sum, float* out) {
  const auto [keep, take] = avx2::MergeSums(partial_max, partial_sum, max, sum);
  const __m512 keep16 = _mm512_set1_ps(keep);
  const __m512 take16 = _mm512_set1_ps(take);
  for (int64_t i = 0; i < n; i += 16) {
    const auto exist = static_cast<__mmask16>(n - i < 16 ? 0xffffU >> (16 - (n - i)) : 0xffffU);
    const __m512 kept = _mm512_mul_ps(_mm512_maskz_loadu_ps(exist, out + i), keep16);
    const __m512 taken = _mm512_mul_ps(_mm512_maskz_loadu_ps(exist, partial_out + i), take16);
    _mm512_mask_storeu_ps(out + i, exist, _mm512_add_ps(kept, taken));
  }
}

}  // namespace outrider::cpu::avx512
