// The processors and memory nodes that this process may use.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

namespace outrider {

/// Numbers of the processors this process may run on, ascending; at least one.
std::vector<int> UsableProcessors();

/// Binds a thread to one processor. False when the system refuses.
bool PinThread(std::thread& thread, int processor);

/// Numbers of the NUMA nodes whose memory this process may use, ascending; empty where the system
/// does not tell.
std::vector<int> UsableMemoryNodes();

/// Spreads the pages of [data, data + bytes), page-aligned and not yet touched, over `nodes` in
/// turn, so that threads of all nodes share the bandwidth of all. False when the system refuses.
bool InterleavePages(void* data, size_t bytes, const std::vector<int>& nodes);

}  // namespace outrider
