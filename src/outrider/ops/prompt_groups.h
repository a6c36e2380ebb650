// How a device groups prompts whose keys and values it makes anew from the cache.
#pragma once

#include <cstdint>

namespace outrider {

/// The most keys that the prompts of a group have together. This bounds the memory of their keys
/// and values. A prompt with more keys is a group of its own.
inline constexpr int32_t kMostGroupKeys = 16384;

}  // namespace outrider
