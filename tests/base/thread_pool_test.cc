#include "outrider/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "outrider/base/processors.h"

namespace outrider {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  ThreadPool pool(4);
  EXPECT_EQ(pool.size(), 4);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> hits(static_cast<size_t>(round));
    pool.ParallelFor(round, [&](int64_t i, int thread) {
      EXPECT_LT(thread, 4);
      ++hits[static_cast<size_t>(i)];
    });
    for (const int h : hits) EXPECT_EQ(h, 1);
  }
}

TEST(ThreadPoolTest, WakesSleepingWorkers) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum{0};
    pool.ParallelFor(100, [&](int64_t i, int) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(ThreadPoolTest, OneThreadRunsOnTheCaller) {
  ThreadPool pool(1);
  const auto me = std::this_thread::get_id();
  pool.ParallelFor(10, [&](int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), me); });
}

TEST(ThreadPoolTest, BindsWorkersAndLeavesTheCallerAlone) {
  const std::vector<int> usable = UsableProcessors();
  const std::vector<int> processors = {usable.front(), usable.back(), usable.front()};
  ThreadPool pool(3, processors);
  std::vector<std::vector<int>> allowed(3);  // by thread: where it may run
  for (int round = 0; round < 1000; ++round) {
    pool.ParallelFor(3, [&](int64_t, int thread) {
      allowed[static_cast<size_t>(thread)] = UsableProcessors();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    if (!allowed[1].empty() && !allowed[2].empty()) break;
  }
  EXPECT_EQ(allowed[1], std::vector<int>{usable.back()});
  EXPECT_EQ(allowed[2], std::vector<int>{usable.front()});
  EXPECT_EQ(UsableProcessors(), usable);
}

TEST(ThreadPoolTest, RunsWhereBindingIsRefused) {
  const std::vector<int> processors = {0, 1 << 20};  // nobody has that one
  ThreadPool pool(2, processors);
  std::atomic<int> sum{0};
  pool.ParallelFor(10, [&](int64_t i, int) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 45);
}

}  // namespace
}  // namespace outrider
