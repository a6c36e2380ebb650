// Progress of loading weights.
#pragma once

#include <cstdint>
#include <functional>

namespace outrider {

/// Bytes read so far and in all.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

}  // namespace outrider
