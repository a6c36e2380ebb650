// What the AMX leaves share of AVX-512 (include there only).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "outrider/kernels/cpu/avx2/vectors.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

using avx2::Least;

/// While it lives, vector instructions take subnormal operands and results for zero, as the matrix
/// unit does. What is to be computed so must not be inlined beside it.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(_mm_getcsr()) {
    constexpr uint32_t kFlushToZero = 0x8000;
    constexpr uint32_t kDenormalsAreZero = 0x40;
    _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero);
  }
  ~SubnormalsAreZero() { _mm_setcsr(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  uint32_t before_;
};

/// The finished sums of a panel's outputs for one row go to y, or are added to what is there;
/// `columns` are those that exist from the panel's first on.
inline __attribute__((always_inline)) void StoreSums(__m512 sums, int64_t columns, bool accumulate,
                                                     float* y) {
  const auto mask = static_cast<__mmask16>(columns < 16 ? 0xffffU >> (16 - columns) : 0xffffU);
  if (accumulate) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), sums);
  _mm512_mask_storeu_ps(y, mask, sums);
}

}  // namespace
}  // namespace outrider::cpu::amx
