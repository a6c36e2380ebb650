// Asks for memory before it is needed: what belongs to one request of many has left the near caches
// while the model ran.
#pragma once

namespace outrider {

/// Starts loading the cache line at `address`. Any address is fine; nothing is read.
inline void Prefetch(const void* address) { __builtin_prefetch(address); }

}  // namespace outrider
