// The random numbers that stand for a checkpoint's weights. A value is a function of its tensor's
// stream and of its place in the tensor, with the same bits on the host and on a GPU.
#pragma once

#include <cstdint>

#include "outrider/base/host_device.h"

namespace outrider {

/// The values of one tensor: uniform in center ± half_width.
struct DummyStream {
  uint64_t key = 0;
  float center = 0;
  float half_width = 0;
};

inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15;

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): a bijection that spreads every bit of x.
OUTRIDER_HOST_DEVICE constexpr uint64_t SplitMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Bits for four values: those of elements 4 * group .. 4 * group + 3 in row-major order.
OUTRIDER_HOST_DEVICE constexpr uint64_t DummyBits(const DummyStream& stream, uint64_t group) {
  return SplitMix(stream.key + group * kSplitMixStep);
}

/// Value i of the four, to be rounded to bfloat16. It takes 16 of the 64 bits: u in (-1, 1),
/// uniform, in steps of 2^-15; then center + half_width * u.
OUTRIDER_HOST_DEVICE inline float DummyValue(const DummyStream& stream, uint64_t bits, int i) {
  const auto integer = static_cast<int16_t>(bits >> (16 * i));
  const float u = RoundedMul(RoundedAdd(static_cast<float>(integer), 0.5F), 0x1p-15F);
  return RoundedAdd(stream.center, RoundedMul(stream.half_width, u));
}

}  // namespace outrider
