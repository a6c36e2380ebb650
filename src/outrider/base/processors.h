// The processors and memory nodes that this process may use.
#pragma once

#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace outrider {

/// Numbers of the processors this process may run on, at least one: those of a NUMA node together,
/// nodes and processors of a node ascending.
std::vector<int> UsableProcessors();

/// Binds a thread to one processor. False when the system refuses.
bool PinThread(std::thread& thread, int processor);
bool PinThisThread(int processor);

/// The NUMA node that a processor belongs to; 0 where the system does not tell.
int MemoryNodeOf(int processor);

/// The nodes of processors, each once, ascending.
std::vector<int> MemoryNodesOf(std::span<const int> processors);

/// Numbers of the NUMA nodes whose memory this process may use, ascending; empty where the system
/// does not tell.
std::vector<int> UsableMemoryNodes();

/// Spreads the pages of [data, data + bytes), page-aligned and not yet touched, over `nodes` in
/// turn, so that threads of all nodes share the bandwidth of all. False when the system refuses.
bool InterleavePages(void* data, size_t bytes, const std::vector<int>& nodes);

/// While it is there, large Buffers that its thread makes have their pages on these nodes in turn;
/// without nodes, or on a machine with one, as without it: on all that the process may use.
class MemoryNodes {
 public:
  explicit MemoryNodes(std::vector<int> nodes);
  ~MemoryNodes();
  MemoryNodes(const MemoryNodes&) = delete;
  MemoryNodes& operator=(const MemoryNodes&) = delete;

  /// Empty: any.
  static const std::vector<int>& OfThisThread();

 private:
  std::vector<int> before_;
};

}  // namespace outrider
