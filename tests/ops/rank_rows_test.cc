// What ranks choose together: of equal values the first token, whoever has it.
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
      Scratch arena;
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

}  // namespace
}  // namespace outrider
