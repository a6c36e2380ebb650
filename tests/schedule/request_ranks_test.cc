// Requests among ranks that each have the cache of their own requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "outrider/kv/page_number.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

SchedulerConfig RanksConfig(int32_t cache_ranks, int32_t num_pages = 32) {
  return {.cache = FullHistoryCache(num_pages, 4),
          .cache_ranks = cache_ranks,
          .max_num_seqs = 32,
          .max_num_batched_tokens = 512,
          .max_model_len = 100};
}

std::set<int32_t> RanksOf(const PlannedRequest& planned, int32_t ranks) {
  std::set<int32_t> of;
  for (const int32_t page : planned.tables->blocks(0)) of.insert(RankOfPage(page, ranks));
  return of;
}

/// The rank of every request of a plan, whose pages are all there.
std::map<RequestId, int32_t> RanksOf(const StepPlan& plan, int32_t ranks) {
  std::map<RequestId, int32_t> by_id;
  for (const PlannedRequest& planned : plan.requests) {
    const std::set<int32_t> of = RanksOf(planned, ranks);
    EXPECT_EQ(of.size(), 1U);
    by_id[planned.id] = *of.begin();
  }
  return by_id;
}

void CommitOneEach(Scheduler& scheduler, const StepPlan& plan) {
  for (const PlannedRequest& r : plan.requests) scheduler.Commit(r, 0, r.samples ? 1 : 0, 0);
}

TEST(RequestRanksTest, ARequestGoesWhereMostPagesAreFree) {
  Scheduler scheduler(RanksConfig(3));
  scheduler.Add({.id = 1, .prompt_length = 60});
  scheduler.Add({.id = 2, .prompt_length = 8});
  scheduler.Add({.id = 3, .prompt_length = 8});
  scheduler.Add({.id = 4, .prompt_length = 8});
  scheduler.Add({.id = 5, .prompt_length = 8});
  const StepPlan plan = scheduler.Plan();
  EXPECT_THAT(RanksOf(plan, 3),
              UnorderedElementsAre(std::pair(1, 0), std::pair(2, 1), std::pair(3, 2),
                                   std::pair(4, 1), std::pair(5, 2)));
  CommitOneEach(scheduler, plan);
  // It stays there.
  EXPECT_EQ(RanksOf(scheduler.Plan(), 3).at(1), 0);
  for (RequestId id = 1; id <= 5; ++id) scheduler.Remove(id);
  for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(scheduler.pool(rank).num_free(), 32);
}

TEST(RequestRanksTest, NRanksHoldNTimesTheRequests) {
  const auto admitted = [](int32_t ranks) {
    Scheduler scheduler(RanksConfig(ranks));
    for (RequestId id = 1; id <= 20; ++id) scheduler.Add({.id = id, .prompt_length = 30});
    const size_t count = scheduler.Plan().admitted.size();
    EXPECT_GT(scheduler.CacheUsage(), 0.9);
    return count;
  };
  EXPECT_EQ(admitted(1), 4U);
  EXPECT_EQ(admitted(2), 8U);
  EXPECT_EQ(admitted(4), 16U);
}

TEST(RequestRanksTest, PagesOfOtherRanksAreNotTaken) {
  Scheduler scheduler(RanksConfig(2, /*num_pages=*/25));
  // Ranks 0, 1, 0, 1: two on each, which fill 24 of 25 pages.
  for (RequestId id = 1; id <= 4; ++id) scheduler.Add({.id = id, .prompt_length = 47});
  StepPlan plan = scheduler.Plan();
  ASSERT_EQ(RanksOf(plan, 2).at(4), 1);
  // The first ends: rank 0 has room, rank 1 is short and takes from the last of its own.
  CommitOneEach(scheduler, plan);
  scheduler.Remove(1);
  while (plan.preempted.empty()) {
    plan = scheduler.Plan();
    CommitOneEach(scheduler, plan);
  }
  EXPECT_THAT(plan.preempted, ElementsAre(4));
  const auto ids = RanksOf(plan, 2);
  EXPECT_EQ(ids.at(2), 1);
  EXPECT_EQ(ids.at(3), 0);
  // It goes on where there is room.
  scheduler.Remove(3);
  plan = scheduler.Plan();
  EXPECT_EQ(RanksOf(plan, 2).at(4), 0);
}

class CachedPrompts {
 public:
  explicit CachedPrompts(Scheduler& scheduler) : scheduler_(scheduler) {}

  void Add(RequestId id, const std::vector<int32_t>& tokens) {
    BlockKeys& keys = keys_[id] = hasher_.Start("");
    hasher_.Extend(tokens, keys);
    scheduler_.Add({.id = id, .prompt_length = static_cast<int32_t>(tokens.size()), .keys = &keys});
  }

 private:
  Scheduler& scheduler_;
  BlockKeyHasher hasher_{4, 0};
  std::map<RequestId, BlockKeys> keys_;
};

TEST(RequestRanksTest, APrefixThatIsCachedDrawsARequestToItsRank) {
  Scheduler scheduler(RanksConfig(2));
  CachedPrompts prompts(scheduler);
  std::vector<int32_t> text(24);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> other(40, 77);
  prompts.Add(1, other);  // rank 0
  prompts.Add(2, text);   // rank 1
  CommitOneEach(scheduler, scheduler.Plan());
  scheduler.Remove(1);
  // Rank 0 has more free pages now, rank 1 the text.
  prompts.Add(3, text);
  const StepPlan plan = scheduler.Plan();
  EXPECT_EQ(RanksOf(plan, 2).at(3), 1);
  EXPECT_EQ(plan.admitted.at(0).cached_tokens, 20);
  CommitOneEach(scheduler, plan);
  // A short beginning that all share does not draw all of them.
  std::set<int32_t> ranks;
  for (RequestId id = 4; id <= 9; ++id) {
    std::vector<int32_t> tokens(text.begin(), text.begin() + 4);
    tokens.resize(24, static_cast<int32_t>(100 + id));
    prompts.Add(id, tokens);
  }
  for (const auto& [id, rank] : RanksOf(scheduler.Plan(), 2)) {
    if (id >= 4) ranks.insert(rank);
  }
  EXPECT_THAT(ranks, ElementsAre(0, 1));
}

TEST(RequestRanksTest, WherePagesAreShortAnotherRankComputesThePrefixAgain) {
  Scheduler scheduler(RanksConfig(2));
  CachedPrompts prompts(scheduler);
  const std::vector<int32_t> text(64, 5);
  prompts.Add(1, text);  // rank 0
  CommitOneEach(scheduler, scheduler.Plan());
  prompts.Add(2, std::vector<int32_t>(40, 6));  // rank 1
  prompts.Add(3, std::vector<int32_t>(60, 7));  // rank 1
  CommitOneEach(scheduler, scheduler.Plan());
  for (const RequestId id : {4, 5}) {
    std::vector<int32_t> longer = text;
    longer.resize(99, static_cast<int32_t>(id));
    prompts.Add(id, longer);  // the first on rank 0, the second nowhere yet
  }
  const StepPlan full = scheduler.Plan();
  ASSERT_EQ(full.admitted.size(), 1U);
  EXPECT_EQ(full.admitted[0].cached_tokens, 64);
  CommitOneEach(scheduler, full);
  scheduler.Remove(2);
  scheduler.Remove(3);
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.admitted.size(), 1U);
  EXPECT_EQ(plan.admitted[0].cached_tokens, 0);
  EXPECT_EQ(RanksOf(plan, 2).at(5), 1);
}

}  // namespace
}  // namespace outrider
