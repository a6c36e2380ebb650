// What ranks choose together: of equal values the first token, whoever has it. And rows that one
// rank has and all get.
#include "outrider/ops/cpu/rank_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <thread>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider {
namespace {

constexpr int64_t kSharedVocab = 300;
constexpr float kLargest = std::numeric_limits<float>::infinity();

/// The largest of a rank's values, and its token counted from the start of the share.
struct RankBest {
  float value = 0;
  int32_t token = 0;
};

/// What every rank has after it chose, where best(rank, share) is the best of its tokens.
template <typename BestOfShare>
std::vector<int32_t> Chosen(int32_t ranks, int64_t num_tokens, BestOfShare best) {
  auto communicators = MakeThreadCommunicators(ranks);
  std::vector<int32_t> chosen(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadPool pool(1);
      Arena arena;
      const Context context(
          {cpu::GetCpuOps(SelectIsa()), &pool, communicators[static_cast<size_t>(rank)].get()},
          arena, DType::kF32);
      const std::span<const Share> shares = cpu::HeadShares(context, kSharedVocab, num_tokens);
      const RankBest own = best(rank, shares[static_cast<size_t>(rank)]);
      std::array tokens = {own.token};
      cpu::ChooseAmongRanks(context, shares, std::array{own.value}, tokens);
      chosen[static_cast<size_t>(rank)] = tokens.front();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return chosen;
}

TEST(RankRowsTest, OfEqualValuesTheFirstTokenCounts) {
  for (const int32_t ranks : {2, 4, 8}) {
    for (int32_t first = 0; first < ranks; ++first) {  // the first rank that has the value
      const int64_t begin = ShareOf(Cut::kRows, kSharedVocab, {first, ranks}).first;
      const auto best = [&](int32_t rank, const Share&) {
        return RankBest{rank < first ? 1.0F : 2.0F, 3};
      };
      EXPECT_EQ(Chosen(ranks, kSharedVocab, best),
                std::vector<int32_t>(static_cast<size_t>(ranks), static_cast<int32_t>(begin) + 3));
    }
  }
}

TEST(RankRowsTest, ARankWithoutATokenIsNeverChosenAndAnOverflownRowHasNone) {
  for (const int32_t ranks : {2, 4, 8}) {
    const auto few = [](int32_t, const Share& share) {
      return share.count == 0 ? RankBest{-kLargest, -1} : RankBest{-1e30F, 0};
    };
    EXPECT_EQ(Chosen(ranks, 5, few), std::vector<int32_t>(static_cast<size_t>(ranks), 0));
    for (int32_t overflown = 0; overflown < ranks; ++overflown) {
      const auto best = [&](int32_t rank, const Share&) {
        return RankBest{rank == overflown ? kLargest : 1.0F, 0};
      };
      EXPECT_EQ(Chosen(ranks, kSharedVocab, best),
                std::vector<int32_t>(static_cast<size_t>(ranks), -1));
    }
  }
}

TEST(RankRowsTest, RowsGoFromTheRankThatHasThemToAll) {
  constexpr int32_t kRanks = 3;
  constexpr int32_t kRows = 7;
  // Row 4 is nobody's, and stays as it is.
  const std::vector<RankRun> runs = {{0, 2, 1}, {2, 1, 0}, {3, 1, 2}, {5, 2, 1}};
  auto communicators = MakeThreadCommunicators(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadPool pool(1);
      Arena arena;
      const cpu::CpuOps& ops = cpu::GetCpuOps(SelectIsa());
      const Context context({ops, &pool, communicators[static_cast<size_t>(rank)].get()}, arena,
                            DType::kF32);
      // Rows of a wider matrix: value 10 * rank + row.
      std::vector<float> values(static_cast<size_t>(kRows * 5), -1);
      const Tensor x(values.data(), DType::kF32, kRows, 3, 5);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < 3; ++c) x.floats().row(r)[c] = static_cast<float>(10 * rank + r);
      }
      for (int repeats = 0; repeats < 3; ++repeats) ops.ShareRows(context, x, runs);
      ops.ShareRows(context, x, {});
      std::vector<int32_t> rank_of(kRows, rank);
      for (const RankRun& run : runs) {
        for (int32_t r = run.first; r < run.first + run.count; ++r) {
          rank_of[static_cast<size_t>(r)] = run.rank;
        }
      }
      for (int64_t r = 0; r < kRows; ++r) {
        const auto expected = static_cast<float>(10 * rank_of[static_cast<size_t>(r)] + r);
        for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(x.floats().row(r)[c], expected) << r;
        EXPECT_EQ(x.floats().row(r)[3], -1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace outrider
