// A float32 number as the sum of two of TF32, the type that tensor cores multiply: float32's
// exponents, significands of 11 bits.
#pragma once

#include <cstdint>

#include "outrider/base/host_device.h"

namespace outrider::cuda {

/// The bits of a float32 number that TF32 has. Tensor cores do not read the others.
inline constexpr uint32_t kTf32Bits = ~uint32_t{0x1FFF};

struct Tf32Parts {
  uint32_t high;
  uint32_t low;
};

/// high + low is x within 2^-22 of it; high is rounded to nearest, so low has either sign. A
/// product of two numbers is taken as low high + high low + high high. What is no number has a low
/// part that is none.
OUTRIDER_HOST_DEVICE inline Tf32Parts SplitForTf32(float x) {
  const uint32_t high = FloatBits(x) + 0x1000U;
  return {high, FloatBits(RoundedSub(x, BitsFloat(high & kTf32Bits)))};
}

/// Likewise in one instruction less, within 2^-20: high is cut off, so low has the sign of x.
OUTRIDER_HOST_DEVICE inline Tf32Parts CutForTf32(float x) {
  return {FloatBits(x), FloatBits(RoundedSub(x, BitsFloat(FloatBits(x) & kTf32Bits)))};
}

}  // namespace outrider::cuda
