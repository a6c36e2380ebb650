#include "outrider/base/processors.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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

bool Pin(pthread_t thread, int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return pthread_setaffinity_np(thread, sizeof(set), &set) == 0;
}

thread_local std::vector<int> nodes_of_this_thread;

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
  std::ranges::stable_sort(processors, {}, MemoryNodeOf);
  return processors;
}

bool PinThread(std::thread& thread, int processor) {
  return Pin(thread.native_handle(), processor);
}
bool PinThisThread(int processor) { return Pin(pthread_self(), processor); }

int MemoryNodeOf(int processor) {
  // The folder of a processor has a link to that of its node.
  constexpr std::string_view kNode = "node";
  std::error_code error;
  const std::filesystem::directory_iterator entries(
      fmt::format("/sys/devices/system/cpu/cpu{}", processor), error);
  if (error) return 0;
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    int node = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(kNode)) continue;
    if (std::from_chars(name.data() + kNode.size(), end, node).ptr == end) return node;
  }
  return 0;
}

std::vector<int> MemoryNodesOf(std::span<const int> processors) {
  std::set<int> nodes;
  for (const int processor : processors) nodes.insert(MemoryNodeOf(processor));
  return {nodes.begin(), nodes.end()};
}

MemoryNodes::MemoryNodes(std::vector<int> nodes)
    : before_(std::exchange(nodes_of_this_thread, std::move(nodes))) {}

MemoryNodes::~MemoryNodes() { nodes_of_this_thread = std::move(before_); }

const std::vector<int>& MemoryNodes::OfThisThread() { return nodes_of_this_thread; }

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
