#include "outrider/base/processors.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "outrider/base/buffer.h"

namespace outrider {
namespace {

TEST(Processors, UsableOnesAreDistinct) {
  const std::vector<int> usable = UsableProcessors();
  ASSERT_FALSE(usable.empty());
  EXPECT_TRUE(std::is_sorted(usable.begin(), usable.end()));
  EXPECT_EQ(std::adjacent_find(usable.begin(), usable.end()), usable.end());
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
