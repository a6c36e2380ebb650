// Counter-based random numbers: the noise of a position is a pure function of (seed, position,
// stream), so it does not depend on batching, drafting or history.
#pragma once

#include <array>
#include <cstdint>

#include "outrider/base/host_device.h"

namespace outrider {

/// One round of Philox4x32, round 0 .. 9, on the counter c0 .. c3.
OUTRIDER_HOST_DEVICE constexpr void PhiloxRound(uint64_t key, uint32_t round, uint32_t& c0,
                                                uint32_t& c1, uint32_t& c2, uint32_t& c3) {
  const uint32_t k0 = static_cast<uint32_t>(key) + round * 0x9E3779B9;
  const uint32_t k1 = static_cast<uint32_t>(key >> 32) + round * 0xBB67AE85;
  const uint64_t p0 = uint64_t{0xD2511F53} * c0;
  const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
/// key and counter in, four independent uniform 32-bit words out.
OUTRIDER_HOST_DEVICE constexpr std::array<uint32_t, 4> Philox4x32(uint64_t key,
                                                                  std::array<uint32_t, 4> counter) {
  for (uint32_t round = 0; round < 10; ++round) {
    PhiloxRound(key, round, counter[0], counter[1], counter[2], counter[3]);
  }
  return counter;
}

/// What a random number is for. Streams are independent of each other.
enum class RandomStream : uint32_t {
  kTarget = 0,
  kDraft = 1,
  kAccept = 2,
  kResidual = 3,
  kWeights = 4
};

/// Uniform in (0, 1) in steps of 2^-52: never 0, never 1.
constexpr double UniformDouble(uint64_t seed, uint64_t position, RandomStream stream) {
  const auto r =
      Philox4x32(seed, {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                        static_cast<uint32_t>(stream), 0});
  const uint64_t bits = ((static_cast<uint64_t>(r[0]) << 32) | r[1]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-52;
}

}  // namespace outrider
