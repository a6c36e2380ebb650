// What the AMX leaves share of AVX-512 (include there only).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "outrider/kernels/cpu/avx512/vectors.h"

namespace outrider::cpu::amx {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

using avx2::Least;
using avx512::StoreSums;

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

}  // namespace
}  // namespace outrider::cpu::amx
