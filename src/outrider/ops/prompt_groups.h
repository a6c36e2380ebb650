// How prompts are taken together by a device that makes their keys and values anew from the cache.
#pragma once

#include <cstdint>

namespace outrider {

/// Prompts of one group have at most so many keys together, which bounds the memory of their keys
/// and values; a longer prompt is alone.
inline constexpr int32_t kMostGroupKeys = 16384;

}  // namespace outrider
