// The race that draws a token: of all allowed tokens the one with the largest
//   value(id) = logit(id) * InverseTemperature(T) + Gumbel(GumbelBits(seed, position, stream, id)),
// the product and the sum rounded to float32 one after the other, the lowest id among equals; NaN
// never wins. The winner follows softmax(logit / T), without any sum over the vocabulary, and
// tokens may be looked at in any order (Gumbel 1954; Yellott 1977; "the Gumbel-max trick").
//
// This header is the definition of the noise: every device gives the same bits, see host_device.h.
// What else the devices share is in token_order.h.
#pragma once

#include <array>
#include <cstdint>

#include "outrider/base/host_device.h"
#include "outrider/base/random.h"

namespace outrider {

/// 1 / T. Temperatures below 2^-16, where sampling is greedy for all that float32 can tell, count
/// as 2^-16, so that no product with a logit below 2^111 overflows. T > 0.
OUTRIDER_HOST_DEVICE inline float InverseTemperature(float temperature) {
  constexpr float kLeast = 0x1p-16F;
  return RoundedDiv(1.0F, temperature < kLeast ? kLeast : temperature);
}

/// Where the random word of a token is: one call of Philox gives the words of the four tokens
/// 32 b + i + {0, 8, 16, 24}, i < 8. So eight calls side by side, as in vector registers, give the
/// words of 32 consecutive tokens without a transpose, and one call those of the columns that one
/// thread holds after a wgmma.
OUTRIDER_HOST_DEVICE constexpr uint32_t GumbelBlock(int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  return (id >> 5) * 8 + (id & 7);
}
OUTRIDER_HOST_DEVICE constexpr uint32_t GumbelWord(int32_t token) {
  return (static_cast<uint32_t>(token) >> 3) & 3;
}

/// The words of a block.
OUTRIDER_HOST_DEVICE constexpr std::array<uint32_t, 4> GumbelWords(uint64_t seed, int64_t position,
                                                                   RandomStream stream,
                                                                   uint32_t block) {
  const auto at = static_cast<uint64_t>(position);
  return Philox4x32(seed, {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                           static_cast<uint32_t>(stream), block});
}

/// The word of a token: uniform, and independent between tokens, positions, seeds and streams.
OUTRIDER_HOST_DEVICE constexpr uint32_t GumbelBits(uint64_t seed, int64_t position,
                                                   RandomStream stream, int32_t token) {
  return GumbelWords(seed, position, stream, GumbelBlock(token))[GumbelWord(token)];
}

/// The midpoint of the interval of 2^-32 that a word names: in (0, 1].
OUTRIDER_HOST_DEVICE inline float Midpoint(uint32_t bits) {
  return RoundedMul(RoundedAdd(static_cast<float>(bits), 0.5F), 0x1p-32F);
}

/// ln((1 + s) / (1 - s)) = 2 s (1 + s^2/3 + s^4/5 + s^6/7 + s^8/9 + ...) for |s| <= 0.1716; the
/// next term is below 2^-28.
OUTRIDER_HOST_DEVICE inline float LogRatio(float s) {
  const float z = RoundedMul(s, s);
  float sum = 1.0F / 9;
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 7);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 5);
  sum = RoundedAdd(RoundedMul(sum, z), 1.0F / 3);
  const float twice = RoundedAdd(s, s);
  return RoundedAdd(twice, RoundedMul(RoundedMul(twice, z), sum));
}

/// ln(x) for positive normal x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and ln(m) by LogRatio of
/// (m - 1) / (m + 1). Relative error below 2^-22.
OUTRIDER_HOST_DEVICE inline float RoundedLog(float x) {
  constexpr uint32_t kRootHalf = 0x3F3504F3;  // the bits of sqrt(1/2)
  const uint32_t bits = FloatBits(x) - kRootHalf;
  const auto e = static_cast<float>(static_cast<int32_t>(bits) >> 23);
  const float m = BitsFloat((bits & 0x7FFFFF) + kRootHalf);
  const float log_m = LogRatio(RoundedDiv(RoundedSub(m, 1.0F), RoundedAdd(m, 1.0F)));
  return RoundedAdd(RoundedMul(e, kLn2High), RoundedAdd(log_m, RoundedMul(e, kLn2Low)));
}

/// Standard Gumbel noise -ln(-ln(1 - v)), v the midpoint of `bits`: finite, from -3.13 (all bits
/// set) to 22.88 (none), within 2^-19 of the truth. -ln(1 - v) is exact to a few units in
/// the last place at both ends: for v < 1/4 it is LogRatio(v / (2 - v)), else 1 - v is the midpoint
/// of the complement.
OUTRIDER_HOST_DEVICE inline float Gumbel(uint32_t bits) {
  float exponential;
  if (bits < 0x40000000) {
    const float v = Midpoint(bits);
    exponential = LogRatio(RoundedDiv(v, RoundedSub(2.0F, v)));
  } else {
    exponential = -RoundedLog(Midpoint(~bits));
  }
  return -RoundedLog(exponential);
}

/// No less than Gumbel(bits), from the exponent of v alone: -ln(-ln(1 - v)) < -ln(v). As rounding
/// keeps order, a token whose rounded score + GumbelBound is below another's value loses to it, and
/// its two logarithms need not be computed.
OUTRIDER_HOST_DEVICE inline float GumbelBound(uint32_t bits) {
  const uint32_t v = FloatBits(Midpoint(bits));
  constexpr float kAboveLn2 = 0.69315F;  // NOLINT(modernize-use-std-numbers)
  return RoundedMul(static_cast<float>(127 - static_cast<int32_t>(v >> 23)), kAboveLn2);
}

}  // namespace outrider
