#include "outrider/base/processors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "outrider/base/buffer.h"

namespace outrider {
namespace {

TEST(Processors, UsableOnesAreDistinct) {
  const std::vector<int> usable = UsableProcessors();
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(std::set<int>(usable.begin(), usable.end()).size(), usable.size());
  const auto by_node = [](int a, int b) {
    return std::pair(MemoryNodeOf(a), a) < std::pair(MemoryNodeOf(b), b);
  };
  EXPECT_TRUE(std::is_sorted(usable.begin(), usable.end(), by_node));
}

// As the system tells it in another place: the processors of each node.
TEST(Processors, ANodeHasItsProcessors) {
  const std::vector<int> usable = UsableProcessors();
  for (const int node : MemoryNodesOf(usable)) {
    std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
    if (!file) GTEST_SKIP() << "this system does not tell about NUMA nodes";
    std::set<int> listed;
    for (std::string range; std::getline(file, range, ',');) {
      const size_t dash = range.find('-');
      const int last = std::stoi(dash == std::string::npos ? range : range.substr(dash + 1));
      for (int p = std::stoi(range); p <= last; ++p) listed.insert(p);
    }
    for (const int processor : usable) {
      EXPECT_EQ(MemoryNodeOf(processor) == node, listed.contains(processor)) << processor;
    }
  }
  EXPECT_TRUE(MemoryNodesOf({}).empty());
  EXPECT_EQ(MemoryNodeOf(1 << 20), 0);
}

TEST(Processors, AThreadRunsWhereItIsBound) {
  std::thread([] {
    const int last = UsableProcessors().back();
    ASSERT_TRUE(PinThisThread(last));
    EXPECT_EQ(sched_getcpu(), last);
    EXPECT_EQ(UsableProcessors(), std::vector<int>{last});
    EXPECT_FALSE(PinThisThread(-1));
  }).join();
}

TEST(Processors, NodesOfAThreadAreItsOwnAndEnd) {
  EXPECT_TRUE(MemoryNodes::OfThisThread().empty());
  {
    const MemoryNodes outer({3, 4});
    {
      const MemoryNodes inner({5});
      EXPECT_EQ(MemoryNodes::OfThisThread(), std::vector<int>{5});
      std::thread([] { EXPECT_TRUE(MemoryNodes::OfThisThread().empty()); }).join();
    }
    EXPECT_EQ(MemoryNodes::OfThisThread(), (std::vector<int>{3, 4}));
  }
  EXPECT_TRUE(MemoryNodes::OfThisThread().empty());
}

TEST(Processors, PagesLieOnTheNodesInTurn) {
  const std::vector<int> nodes = UsableMemoryNodes();
  if (nodes.empty()) GTEST_SKIP() << "this system does not tell about NUMA nodes";
  Buffer buffer(size_t{16} << 20);
  ASSERT_TRUE(InterleavePages(buffer.data(), buffer.size(), nodes));
  int policy = -1;
  ASSERT_EQ(syscall(SYS_get_mempolicy, &policy, nullptr, 0, buffer.data(), MPOL_F_ADDR), 0);
  EXPECT_EQ(policy, MPOL_INTERLEAVE);
  EXPECT_FALSE(InterleavePages(buffer.data(), buffer.size(), {})) << "no node, no memory";
}

}  // namespace
}  // namespace outrider
