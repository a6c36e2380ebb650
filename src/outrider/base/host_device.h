// Arithmetic that the host and a CUDA device do with the same bits: every step is one IEEE-754
// float32 operation rounded to nearest even, which no compiler may fuse with the next. Functions
// built of these steps and of integers alone give equal results on both. (The host is compiled with
// -ffp-contract=off; a device must not be compiled with -ftz=true.)
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define OUTRIDER_HOST_DEVICE __host__ __device__
#else
#define OUTRIDER_HOST_DEVICE
#endif

namespace outrider {

/// ln(2) in two parts; the first has so few bits that its product with an integer up to 511 is
/// exact.
inline constexpr float kLn2High = 0x1.62E4p-1F;  // NOLINT(modernize-use-std-numbers)
inline constexpr float kLn2Low = 0x1.7F7D1Cp-20F;

OUTRIDER_HOST_DEVICE inline float RoundedAdd(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

OUTRIDER_HOST_DEVICE inline float RoundedSub(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

OUTRIDER_HOST_DEVICE inline float RoundedMul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

OUTRIDER_HOST_DEVICE inline float RoundedDiv(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

OUTRIDER_HOST_DEVICE inline float RoundedSqrt(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

OUTRIDER_HOST_DEVICE inline uint32_t FloatBits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

OUTRIDER_HOST_DEVICE inline float BitsFloat(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

}  // namespace outrider
