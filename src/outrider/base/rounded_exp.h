// exp with the same bits on the host and on every device (host_device.h).
#pragma once

#include <cstdint>
#include <numbers>

#include "outrider/base/host_device.h"

namespace outrider {

/// The Taylor polynomial of degree 7 of exp, for |f| <= ln(2) / 2.
OUTRIDER_HOST_DEVICE inline float ExpPolynomial(float f) {
  float sum = 1.0F / 5040;
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F / 720);
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F / 120);
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F / 24);
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F / 6);
  sum = RoundedAdd(RoundedMul(sum, f), 0.5F);
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F);
  sum = RoundedAdd(RoundedMul(sum, f), 1.0F);
  return sum;
}

/// exp(x) within 2 units in the last place; 0 below -104, infinity above 89, NaN for NaN.
/// exp(x) = 2^n exp(f), n = x / ln(2) rounded, exp(f) its Taylor polynomial of degree 7.
OUTRIDER_HOST_DEVICE inline float RoundedExp(float x) {
  if (!(x >= -104.0F)) return x != x ? x : 0.0F;
  if (x > 89.0F) return BitsFloat(0x7F800000);
  constexpr float kInverseLn2 = std::numbers::log2e_v<float>;
  constexpr float kShift = 0x1.8p+23F;  // its unit is 1: sums with it are integers
  const float count = RoundedSub(RoundedAdd(RoundedMul(x, kInverseLn2), kShift), kShift);
  const float f =
      RoundedSub(RoundedSub(x, RoundedMul(count, kLn2High)), RoundedMul(count, kLn2Low));
  const float sum = ExpPolynomial(f);
  // 2^n in two factors: n is in -151 .. 129.
  const auto n = static_cast<int32_t>(count);
  const int32_t half = n / 2;
  const float first = BitsFloat(static_cast<uint32_t>(half + 127) << 23);
  const float second = BitsFloat(static_cast<uint32_t>(n - half + 127) << 23);
  return RoundedMul(RoundedMul(sum, first), second);
}

/// 1 / (1 + exp(-x)) by RoundedExp.
OUTRIDER_HOST_DEVICE inline float Sigmoid(float x) { return 1.0F / (1.0F + RoundedExp(-x)); }

}  // namespace outrider
