// What the headers of the token race compute on a GPU, for a comparison with the host's bits.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider::cuda {

/// For every word: the bits of Gumbel, then of GumbelBound.
std::vector<uint32_t> DeviceNoise(const std::vector<uint32_t>& words);

/// For every x: TokenKey(x, its index), TokenWeight(min(x, 0)), MinPWeight(f) and TopPLimit of the
/// key and f, where f = min(|x|, 1).
std::vector<uint64_t> DeviceOrder(const std::vector<float>& xs);

/// GumbelBits of tokens 0 .. count - 1.
std::vector<uint32_t> DeviceBits(uint64_t seed, int64_t position, int32_t count);

/// The bits of InverseTemperature.
std::vector<uint32_t> DeviceInverseTemperatures(const std::vector<float>& temperatures);

}  // namespace outrider::cuda
