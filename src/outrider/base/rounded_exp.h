// exp, and functions of it, with the same bits on the host and on every device (host_device.h).
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

/// ln(1 + x) within 4 units in the last place, for 0 <= x <= 1; NaN for NaN. With s = x / (2 + x)
/// it is 2 s (1 + s^2/3 + s^4/5 + .. + s^14/15); the next term is below 2^-29 of it.
OUTRIDER_HOST_DEVICE inline float RoundedLog1p(float x) {
  const float s = RoundedDiv(x, RoundedAdd(2.0F, x));
  const float z = RoundedMul(s, s);
  float sum = 1.0F / 15;
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 13);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 11);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 9);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 7);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 5);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 3);
  const float twice = RoundedAdd(s, s);
  return RoundedAdd(twice, RoundedMul(RoundedMul(twice, z), sum));
}

/// sqrt(ln(1 + exp(x))), the score of a router's logit in DeepSeek-V4; NaN for NaN.
OUTRIDER_HOST_DEVICE inline float RootOfSoftplus(float x) {
  const float positive = x > 0.0F ? x : 0.0F;
  const float negative = x > 0.0F ? -x : x;  // NaN for NaN
  return RoundedSqrt(RoundedAdd(positive, RoundedLog1p(RoundedExp(negative))));
}

}  // namespace outrider
