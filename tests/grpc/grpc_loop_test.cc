#include "outrider/grpc/grpc_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace outrider {
namespace {

TEST(GrpcLoopTest, RunsJobsInOrderOnOneThread) {
  std::vector<int> seen;
  std::thread::id runner;
  {
    GrpcLoop loop;
    for (int i = 0; i < 1000; ++i) {
      loop.Post([&, i] {
        if (i == 0) runner = std::this_thread::get_id();
        EXPECT_EQ(std::this_thread::get_id(), runner);
        seen.push_back(i);
      });
    }
  }
  ASSERT_EQ(seen.size(), 1000);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  EXPECT_NE(runner, std::this_thread::get_id());
}

TEST(GrpcLoopTest, TakesNothingOnceItIsClosed) {
  GrpcLoop loop;
  bool ran = false;
  loop.Close();
  loop.Post([&] { ran = true; });
  loop.Close();
  EXPECT_FALSE(ran);
}

// A job may post: it runs before the loop ends, or, once that is closed, never.
TEST(GrpcLoopTest, JobsMayPost) {
  std::atomic<int> runs = 0;
  GrpcLoop loop;
  loop.Post([&] { loop.Post([&] { ++runs; }); });
  while (runs == 0) std::this_thread::yield();
  loop.Close();
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace outrider
