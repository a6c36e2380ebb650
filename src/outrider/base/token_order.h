// Which tokens of a row may be drawn under min_p, top_k and top_p, defined such that no order of
// summation matters and every device keeps the same tokens (host_device.h):
//
//   l(id)    the row's logits after mask, bias and penalties; -infinity and NaN are never drawn
//   w(id)    TokenWeight((l(id) - max l) * InverseTemperature(T)), the difference and the product
//            rounded one after the other: exp as 64-bit fixed point
//   order    descending TokenKey(l(id), id): larger logits first, the lower id among equals
//   1. min_p > 0: tokens with w >= MinPWeight(min_p) stay
//   2. top_k > 0: of these the first k in order
//   3. top_p < 1: of these the shortest beginning in order, of at least one token, whose weights
//      sum to TopPLimit(the sum of the weights of all that are left, top_p) or more
#pragma once

#include <cstdint>
#include <numbers>

#include "outrider/base/host_device.h"
#include "outrider/base/rounded_exp.h"

namespace outrider {

/// Orders floats as unsigned integers: larger x, larger key; -0 is 0; NaN comes before everything.
OUTRIDER_HOST_DEVICE inline uint32_t OrderKey(float x) {
  const uint32_t bits = FloatBits(RoundedAdd(x, 0.0F));  // -0 + 0 is 0
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0;
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000;
}

/// Orders (x, token): larger x first has the larger key, then the lower token. The largest key of a
/// race's values is its winner's.
OUTRIDER_HOST_DEVICE inline uint64_t TokenKey(float x, int32_t token) {
  return (static_cast<uint64_t>(OrderKey(x)) << 32) | ~static_cast<uint32_t>(token);
}
OUTRIDER_HOST_DEVICE constexpr int32_t KeyToken(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

/// TokenWeight(0). Sums of up to 2^23 weights fit into 64 bits.
inline constexpr uint64_t kWeightOne = uint64_t{1} << 40;

/// floor(exp(d) * 2^40) for d <= 0, exp within 2^-22 of the truth; 0 below -28 and for NaN.
/// exp(d) = 2^-n exp(f), n = d / -ln(2) rounded, exp(f) its Taylor polynomial of degree 7.
OUTRIDER_HOST_DEVICE inline uint64_t TokenWeight(float d) {
  if (!(d >= -28.0F)) return 0;
  constexpr float kInverseLn2 = std::numbers::log2e_v<float>;
  const auto n = static_cast<int32_t>(RoundedSub(0.5F, RoundedMul(d, kInverseLn2)));  // >= 0
  const auto count = static_cast<float>(n);
  const float f =
      RoundedAdd(RoundedAdd(d, RoundedMul(count, kLn2High)), RoundedMul(count, kLn2Low));
  const float sum = ExpPolynomial(f);
  // sum is in [0.7, 1.42), so sum * 2^30 is an integer.
  return (static_cast<uint64_t>(RoundedMul(sum, 0x1p30F)) << 10) >> n;
}

/// The least weight that min_p keeps: floor(min_p * 2^40). min_p in [0, 1].
OUTRIDER_HOST_DEVICE inline uint64_t MinPWeight(float min_p) {
  return static_cast<uint64_t>(RoundedMul(min_p, 0x1p40F));
}

/// total * floor(top_p * 2^32) / 2^32, rounded down, without overflow. top_p in (0, 1].
OUTRIDER_HOST_DEVICE inline uint64_t TopPLimit(uint64_t total, float top_p) {
  const auto p = static_cast<uint64_t>(RoundedMul(top_p, 0x1p32F));
  return (total >> 32) * p + (((total & 0xFFFFFFFF) * p) >> 32);
}

}  // namespace outrider
