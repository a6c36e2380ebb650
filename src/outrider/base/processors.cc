#include "outrider/base/processors.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace outrider {

namespace {

constexpr size_t kMaxNodes = 1024;  // the most that Linux can be built for
constexpr size_t kWordBits = 64;

/// As the system calls take it. They read one bit less than they are told of.
struct NodeMask {
  std::array<uint64_t, kMaxNodes / kWordBits> words{};
  static constexpr uint64_t kBits = kMaxNodes + 1;

  bool Has(size_t node) const {
    return (words.at(node / kWordBits) >> (node % kWordBits) & 1) != 0;
  }
  void Add(size_t node) { words.at(node / kWordBits) |= uint64_t{1} << (node % kWordBits); }
};

}  // namespace

std::vector<int> UsableProcessors() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int p = 0; p < CPU_SETSIZE; ++p) {
      if (CPU_ISSET(p, &set)) processors.push_back(p);
    }
  }
  if (processors.empty()) {  // more than CPU_SETSIZE of them
    const auto count = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    for (int p = 0; p < count; ++p) processors.push_back(p);
  }
  return processors;
}

bool PinThread(std::thread& thread, int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) == 0;
}

std::vector<int> UsableMemoryNodes() {
  std::vector<int> nodes;
  NodeMask mask;
  if (syscall(SYS_get_mempolicy, nullptr, mask.words.data(), NodeMask::kBits, nullptr,
              MPOL_F_MEMS_ALLOWED) != 0) {
    return nodes;
  }
  for (size_t node = 0; node < kMaxNodes; ++node) {
    if (mask.Has(node)) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

bool InterleavePages(void* data, size_t bytes, const std::vector<int>& nodes) {
  NodeMask mask;
  for (const int node : nodes) mask.Add(static_cast<size_t>(node));
  return syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, mask.words.data(), NodeMask::kBits, 0) ==
         0;
}

}  // namespace outrider
