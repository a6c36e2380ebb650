#include "outrider/parallel/thread_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "outrider/base/thread_pool.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

/// run(communicator) on a thread for each rank; what each threw, or "".
std::vector<std::string> OnRanks(int32_t ranks, double seconds,
                                 const std::function<void(Communicator&)>& run) {
  const auto communicators = MakeThreadCommunicators(ranks, seconds);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run(*communicators[static_cast<size_t>(rank)]);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void ExpectNoErrors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::vector<Share> SharesOf(int64_t size, int32_t ranks) {
  std::vector<Share> shares;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    shares.push_back(ShareOf(Cut::kRows, size, {rank, ranks}));
  }
  return shares;
}

/// What stands in byte (row, column) of call `call`.
std::byte Value(int call, int64_t row, int64_t column) {
  return static_cast<std::byte>(call * 131 + row * 17 + column * 3);
}

TEST(ThreadCommunicatorTest, GathersAndBroadcastsAsRanksComeAndGo) {
  for (const int32_t ranks : {1, 2, 4, 8}) {
    ExpectNoErrors(OnRanks(ranks, 60, [&](Communicator& c) {
      const int32_t rank = c.place().rank;
      std::minstd_rand random(static_cast<uint32_t>(rank + 1));
      std::minstd_rand shapes(5);  // equal on all ranks
      for (int call = 0; call < 300; ++call) {
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        const auto rows = static_cast<int64_t>(shapes() % 5);
        const auto columns = static_cast<int64_t>(ranks + shapes() % 400);
        if (shapes() % 3 == 0) {
          const auto root = static_cast<int32_t>(shapes() % static_cast<uint32_t>(ranks));
          std::vector<std::byte> bytes(static_cast<size_t>(columns), std::byte{1});
          if (rank == root) {
            for (int64_t i = 0; i < columns; ++i) bytes[static_cast<size_t>(i)] = Value(call, 0, i);
          }
          c.Broadcast(root, bytes);
          for (int64_t i = 0; i < columns; ++i) {
            ASSERT_EQ(bytes[static_cast<size_t>(i)], Value(call, 0, i));
          }
          continue;
        }
        // Two at once: in place, in rows that are wider; and from memory of its own.
        const std::vector<Share> shares = SharesOf(columns, ranks);
        const Share own = shares[static_cast<size_t>(rank)];
        const int64_t stride = columns + 9;
        std::vector<std::byte> wide(static_cast<size_t>(rows * stride));
        std::vector<std::byte> all(static_cast<size_t>(rows * columns));
        std::vector<std::byte> part(static_cast<size_t>(rows * own.count));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < own.count; ++i) {
            const std::byte value = Value(call, r, own.first + i);
            wide[static_cast<size_t>(r * stride + own.first + i)] = value;
            part[static_cast<size_t>(r * own.count + i)] = value;
          }
        }
        const MatrixView<std::byte> in_place(wide.data(), rows, columns, stride);
        c.Gather(std::vector<GatheredRows>{
            {in_place.Columns(own.first, own.count), in_place, shares},
            {{part.data(), rows, own.count}, {all.data(), rows, columns}, shares}});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < columns; ++i) {
            ASSERT_EQ(in_place.row(r)[i], Value(call, r, i));
            ASSERT_EQ(all[static_cast<size_t>(r * columns + i)], Value(call, r, i));
          }
          for (int64_t i = columns; i < stride && r + 1 < rows; ++i) {
            ASSERT_EQ(in_place.row(r)[i], std::byte{0}) << "behind the columns";
          }
        }
      }
    }));
  }
}

TEST(ThreadCommunicatorTest, ARootThatRunsAheadOverwritesNothing) {
  ExpectNoErrors(OnRanks(3, 60, [](Communicator& c) {
    for (int call = 0; call < 50; ++call) {
      if (c.place().rank == 2 && call % 10 == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      std::vector<std::byte> bytes(64, Value(call, c.place().rank, 0));
      c.Broadcast(0, bytes);
      ASSERT_EQ(bytes.front(), Value(call, 0, 0));
    }
  }));
}

/// A call of all ranks.
void Meet(Communicator& c) {
  std::vector<std::byte> all(8);
  const std::vector<Share> shares = SharesOf(8, c.place().ranks);
  const Share own = shares[static_cast<size_t>(c.place().rank)];
  const MatrixView<std::byte> rows(all.data(), 1, 8);
  c.Gather(std::vector<GatheredRows>{{rows.Columns(own.first, own.count), rows, shares}});
}

TEST(ThreadCommunicatorTest, ARankThatEndsEndsTheOthersAndIsNamed) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = OnRanks(4, 60, [](Communicator& c) {
    Meet(c);
    if (c.place().rank == 2) return c.End("no memory is left");
    for (;;) Meet(c);
  });
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 2 of 4 has ended: no memory is left"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(ThreadCommunicatorTest, ARankThatHangsEndsTheOthersAndIsNamed) {
  const auto errors = OnRanks(3, 0.2, [](Communicator& c) {
    Meet(c);
    if (c.place().rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    for (;;) Meet(c);
  });
  // The one that hung learns that it was given up.
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1 of 3 has ended: it has not answered for 0.2 s"));
  }
}

/// What OnRanks(3, 0.5, ...) gives where rank 1 has `tasks` tasks of 50 ms for so many threads, of
/// which the last one takes `last`.
std::vector<std::string> OnRanksThatWork(int threads, int tasks, std::chrono::milliseconds last) {
  std::deque<ThreadPool> pools;  // others look at them until all have ended
  for (int rank = 0; rank < 3; ++rank) pools.emplace_back(threads);
  return OnRanks(3, 0.5, [&](Communicator& c) {
    ThreadPool& pool = pools[static_cast<size_t>(c.place().rank)];
    c.ShowProgress([&] { return pool.progress(); });
    Meet(c);
    if (c.place().rank == 1) {
      pool.ParallelFor(tasks, [&](int64_t index, int) {
        std::this_thread::sleep_for(index + 1 == tasks ? last : std::chrono::milliseconds(50));
      });
    }
    for (int call = 0; call < 3; ++call) Meet(c);
  });
}

TEST(ThreadCommunicatorTest, ARankThatWorksMayTakeLonger) {
  for (const int threads : {1, 2}) {
    ExpectNoErrors(OnRanksThatWork(threads, 30 * threads, std::chrono::milliseconds(50)));
  }
}

TEST(ThreadCommunicatorTest, ARankThatHangsInItsWorkIsNamed) {
  for (const int threads : {1, 2}) {
    for (const std::string& error : OnRanksThatWork(threads, 12, std::chrono::seconds(2))) {
      EXPECT_THAT(error, HasSubstr("rank 1 of 3 has ended: it has not answered for 0.5 s"));
    }
  }
}

TEST(ThreadCommunicatorTest, TheFirstReasonStands) {
  const auto communicators = MakeThreadCommunicators(2);
  communicators[1]->End("first");
  communicators[0]->End("second");
  for (const auto& communicator : communicators) {
    try {
      Meet(*communicator);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 1 of 2 has ended: first");
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace outrider
