// The threads that prepare requests: whose turn it is, and what waits for what.
#include "outrider/server/work_threads.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <latch>
#include <map>
#include <string>
#include <thread>

namespace outrider {
namespace {

TEST(ClientQueuesTest, ClientsTakeTurns) {
  ClientQueues queues;
  std::string order;
  const auto push = [&](const char* client, char job) {
    queues.Push(client, [&order, job] { order += job; });
  };
  for (const char job : std::string("abcde")) push("busy", job);
  push("other", '1');
  push("other", '2');
  push("third", 'x');
  EXPECT_EQ(queues.CountOf("busy"), 5U);
  EXPECT_EQ(queues.CountOf("nobody"), 0U);
  for (int i = 0; i < 4; ++i) queues.Pop()();
  push("third", 'y');  // it had its turn: the two before it come first
  while (!queues.empty()) queues.Pop()();
  EXPECT_EQ(order, "a1xb2cyde");
}

// Whatever comes and goes: jobs of a client run in their order, and between two jobs of a client
// that waits nobody has more than one turn.
RC_GTEST_PROP(ClientQueuesTest, NobodyHasTwoTurnsWhileAnotherWaits, ()) {
  ClientQueues queues;
  std::map<std::string, int> pushed;
  std::map<std::string, int> ran;
  std::map<std::string, std::map<std::string, int>> turns_since;  // while a client waits
  for (int step = 0; step < 200; ++step) {
    const std::string client(1, static_cast<char>('a' + *rc::gen::inRange(0, 5)));
    if (*rc::gen::arbitrary<bool>() || queues.empty()) {
      const int number = pushed[client]++;
      queues.Push(client, [&ran, &turns_since, client, number] {
        RC_ASSERT(ran[client]++ == number);
        turns_since.erase(client);
        for (auto& [waiting, turns] : turns_since) RC_ASSERT(++turns[client] <= 1);
      });
      turns_since.try_emplace(client);
    } else {
      const auto job = queues.Pop();
      job();
      for (const auto& [name, count] : pushed) {
        if (ran[name] < count) turns_since.try_emplace(name);
      }
    }
  }
}

constexpr WorkOptions kOptions = {
    .max_waiting = 8, .num_threads = 1, .num_large_threads = 2, .large_bytes = 10};

TEST(WorkThreadsTest, SmallJobsNeverWaitForLargeOnes) {
  std::latch release(1);
  std::latch small_ran(3);
  WorkThreads threads(kOptions);
  for (int i = 0; i < 4; ++i) {  // two run, two wait
    ASSERT_TRUE(threads.TryAdd("a", 11, [&] { release.wait(); }));
  }
  for (const char* client : {"a", "b", "c"}) {
    // The queue may still hold the first two.
    while (!threads.TryAdd(client, 10, [&] { small_ran.count_down(); })) std::this_thread::yield();
  }
  small_ran.wait();  // hangs otherwise
  release.count_down();
}

TEST(WorkThreadsTest, LargeJobsComeFirstOnTheirThreads) {
  std::latch started(1);
  std::latch release(1);
  std::latch all_ran(4);
  std::string order;
  WorkThreads threads({.max_waiting = 100, .num_threads = 0, .num_large_threads = 1});
  const auto run = [&](char job) {
    order += job;
    all_ran.count_down();
  };
  ASSERT_TRUE(threads.TryAdd("a", 0, [&] {
    started.count_down();
    release.wait();
  }));
  started.wait();
  for (const char job : std::string("123")) {
    ASSERT_TRUE(threads.TryAdd("a", 0, [&run, job] { run(job); }));
  }
  ASSERT_TRUE(threads.TryAdd("b", 1, [&run] { run('L'); }));
  release.count_down();
  all_ran.wait();
  EXPECT_EQ(order, "L123");
}

TEST(WorkThreadsTest, AClientMayHaveHalfOfTheQueue) {
  std::latch started(1);
  std::latch release(1);
  WorkThreads threads({.max_waiting = 8, .num_threads = 1});
  ASSERT_TRUE(threads.TryAdd("a", 0, [&] {
    started.count_down();
    release.wait();
  }));
  started.wait();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(threads.TryAdd("a", 0, [] {}));
  EXPECT_FALSE(threads.TryAdd("a", 0, [] {}));
  for (const char* client : {"b", "c", "d", "e"}) EXPECT_TRUE(threads.TryAdd(client, 0, [] {}));
  EXPECT_FALSE(threads.TryAdd("f", 0, [] {})) << "the queue is full";
  release.count_down();
}

}  // namespace
}  // namespace outrider
