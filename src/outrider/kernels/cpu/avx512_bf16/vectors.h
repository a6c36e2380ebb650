// What the AVX-512 BF16 leaves share (include there only).
#pragma once

#include <immintrin.h>

#include "outrider/kernels/cpu/avx512/vectors.h"

namespace outrider::cpu::avx512_bf16 {
// One copy per leaf file: these must not become shared symbols with AVX-512 code.
namespace {  // NOLINT(google-build-namespaces)

using avx2::Least;

/// sum[i] += a[2 i + 1] * b[2 i + 1], then += a[2 i] * b[2 i], of bfloat16 elements, each fused, in
/// the register that holds the sum.
inline __attribute__((always_inline)) void AddDots(__m512i a, __m512i b, __m512& sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

}  // namespace
}  // namespace outrider::cpu::avx512_bf16
