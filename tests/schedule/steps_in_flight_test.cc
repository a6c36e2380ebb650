// Planning while a step is in flight: bounds of what it may do, and what must wait for it. Most of
// these are mistakes that other engines made (the issue is named).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outrider/schedule/scheduler.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kDrafts = 3;

SchedulerConfig InFlightConfig(int32_t num_pages = 64) {
  return {.cache = FullHistoryCache(num_pages, /*tokens_per_block=*/4),
          .max_num_seqs = 4,
          .max_num_batched_tokens = 128,
          .max_model_len = 100,
          .max_drafts = kDrafts,
          .lookahead_tokens = 2};
}

/// A scheduler with requests that decode, `drafts` each to be verified, and no step in flight.
void AddDecoding(Scheduler& scheduler, const std::vector<RequestId>& ids, int32_t prompt_length,
                 int32_t drafts = kDrafts, int32_t max_total_tokens = 0) {
  for (const RequestId id : ids) {
    scheduler.Add({.id = id, .prompt_length = prompt_length, .max_total_tokens = max_total_tokens});
  }
  for (const PlannedRequest& planned : StepPlan(scheduler.Plan()).requests) {
    scheduler.Commit(planned, 0, 1, drafts);
  }
}

TEST(StepsInFlightTest, BoundsCoverEverythingThatTheStepInFlightMayDo) {
  Scheduler scheduler(InFlightConfig());
  AddDecoding(scheduler, {1}, 10);
  const PlannedRequest first = scheduler.Plan().requests.at(0);
  EXPECT_EQ(first.context_length, 10);
  EXPECT_EQ(first.most_context_length, 10);
  const PlannedRequest second = scheduler.Plan().requests.at(0);
  EXPECT_EQ(second.phase, Phase::kDecode);
  EXPECT_EQ(second.context_length, 11);       // nothing accepted
  EXPECT_EQ(second.most_context_length, 14);  // everything
  EXPECT_EQ(second.num_tokens, 1);
  EXPECT_EQ(second.num_drafts, kDrafts);
  // Closed at commit, wherever the truth lies between them.
  scheduler.Commit(first, 2, 3, 1);
  scheduler.Commit(second, 1, 2, 2);
  const PlannedRequest third = scheduler.Plan().requests.at(0);
  EXPECT_EQ(third.context_length, 15);
  EXPECT_EQ(third.most_context_length, 15);
  EXPECT_EQ(third.num_drafts, 2);
}

// TensorRT-LLM #16280: pages for the step, but not for what is in flight before it.
TEST(StepsInFlightTest, PagesReachBehindTheStepInFlight) {
  Scheduler scheduler(InFlightConfig());
  AddDecoding(scheduler, {1}, 11);
  scheduler.Plan();
  const PlannedRequest second = scheduler.Plan().requests.at(0);
  // At most 15 tokens are cached before it; it writes 1 + 3, and its drafter 2 more: 21 tokens.
  EXPECT_THAT(second.tables->blocks(0), SizeIs(6));
}

// TensorRT-LLM #16101: the budget of prompts left out drafts that are not known yet.
TEST(StepsInFlightTest, TheBudgetCountsDraftsThatMayCome) {
  SchedulerConfig config = InFlightConfig();
  config.max_num_batched_tokens = 80;
  Scheduler scheduler(config);
  AddDecoding(scheduler, {1, 2}, 10, /*drafts=*/0);
  scheduler.Plan();
  scheduler.Add({.id = 3, .prompt_length = 90});
  const StepPlan& second = scheduler.Plan();
  ASSERT_THAT(second.requests, SizeIs(3));
  EXPECT_EQ(second.requests[2].num_tokens, 80 - 2 * (1 + kDrafts));
}

// vLLM #27922: steps planned beyond max_tokens.
TEST(StepsInFlightTest, NothingIsPlannedBeyondARequestsLastToken) {
  Scheduler scheduler(InFlightConfig());
  AddDecoding(scheduler, {1}, 10, /*drafts=*/1, /*max_total_tokens=*/13);
  const PlannedRequest first = scheduler.Plan().requests.at(0);
  // Token 12 comes at least; 13 is the last, and needs no draft.
  const PlannedRequest second = scheduler.Plan().requests.at(0);
  EXPECT_EQ(second.num_drafts, 0);
  scheduler.Commit(first, 0, 1, 0);
  EXPECT_THAT(scheduler.Plan().requests, IsEmpty());
}

TEST(StepsInFlightTest, ChunksOfAPromptFollowEachOther) {
  SchedulerConfig config = InFlightConfig();
  config.max_num_batched_tokens = 16;
  Scheduler scheduler(config);
  scheduler.Add({.id = 1, .prompt_length = 40});
  std::vector<PlannedRequest> planned = {scheduler.Plan().requests.at(0)};
  for (int i = 0; i < 3; ++i) {
    planned.push_back(scheduler.Plan().requests.at(0));
    const bool samples = planned[planned.size() - 2].samples;
    scheduler.Commit(planned[planned.size() - 2], 0, samples ? 1 : 0, 0);
  }
  std::vector<int32_t> contexts;
  for (const PlannedRequest& p : planned) contexts.push_back(p.context_length);
  EXPECT_THAT(contexts, ElementsAre(0, 16, 32, 40));
  EXPECT_EQ(planned[2].phase, Phase::kPromptEnd);
  EXPECT_EQ(planned[3].phase, Phase::kDecode);  // of a token that is in flight
}

// vLLM #42117 lost a token of a request that was preempted with a step in flight; #30916 kept its
// drafts. Here nobody is: the step in flight is committed first.
TEST(StepsInFlightTest, NobodyIsPreemptedWhileAStepIsInFlight) {
  SchedulerConfig config = InFlightConfig(/*num_pages=*/27);
  Scheduler scheduler(config);
  AddDecoding(scheduler, {1, 2}, 45);  // 12 + 12 pages, of 48 positions
  StepPlan first = scheduler.Plan();   // 45 + 4 + 2 positions: 13 + 13
  ASSERT_THAT(first.requests, SizeIs(2));
  const StepPlan second = scheduler.Plan();  // 55 positions may come: 14 each
  EXPECT_THAT(second.requests, IsEmpty());
  EXPECT_THAT(second.preempted, IsEmpty());
  // Nothing was accepted: both go on with what they have.
  for (const PlannedRequest& planned : first.requests) scheduler.Commit(planned, 0, 1, kDrafts);
  const StepPlan third = scheduler.Plan();
  EXPECT_THAT(third.requests, SizeIs(2));
  EXPECT_THAT(third.preempted, IsEmpty());
  // Everything was: now one must go.
  for (const PlannedRequest& planned : third.requests) {
    scheduler.Commit(planned, kDrafts, 1 + kDrafts, kDrafts);
  }
  const StepPlan fourth = scheduler.Plan();
  EXPECT_THAT(fourth.preempted, ElementsAre(2));
  EXPECT_THAT(fourth.requests, SizeIs(1));
}

// SGLang #11981, #1860: what is removed with a step in flight leaked its pages.
TEST(StepsInFlightTest, ARequestMayGoWhileTwoStepsAreInFlight) {
  Scheduler scheduler(InFlightConfig());
  AddDecoding(scheduler, {1, 2}, 10);
  const StepPlan first = scheduler.Plan();
  const StepPlan second = scheduler.Plan();
  scheduler.Remove(1);
  scheduler.Commit(first.requests.at(1), 1, 2, 3);
  // Slot and pages go to the next, while the second step is in flight.
  scheduler.Add({.id = 3, .prompt_length = 10});
  const StepPlan third = scheduler.Plan();
  ASSERT_THAT(third.admitted, SizeIs(1));
  EXPECT_EQ(third.admitted[0].slot, second.requests[0].slot);
  scheduler.Commit(second.requests.at(1), 0, 1, 3);
  scheduler.Commit(third.requests.at(0), 3, 4, 0);
  scheduler.Remove(2);
  scheduler.Remove(3);
  EXPECT_EQ(scheduler.pool().num_free(), 64);
}

// The steps of a request that has gone hold up nobody.
TEST(StepsInFlightTest, PreemptionIsPossibleAfterRequestsInFlightHaveGone) {
  Scheduler scheduler(InFlightConfig(/*num_pages=*/27));
  AddDecoding(scheduler, {1, 2}, 45);
  const StepPlan first = scheduler.Plan();
  scheduler.Remove(1);
  scheduler.Commit(first.requests.at(1), 0, 1, kDrafts);
  scheduler.Add({.id = 3, .prompt_length = 40});
  size_t preempted = 0;
  for (int step = 0; step < 6; ++step) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_FALSE(plan.requests.empty());
    preempted += plan.preempted.size();
    for (const PlannedRequest& planned : plan.requests) {
      scheduler.Commit(planned, planned.num_drafts, 1 + planned.num_drafts, kDrafts);
    }
  }
  EXPECT_EQ(preempted, 1U);
}

// vLLM caches blocks up to what is computed less its placeholders; what is in flight is no prefix.
TEST(StepsInFlightTest, NothingInFlightIsPublished) {
  SchedulerConfig config = InFlightConfig();
  config.lookahead_tokens = 0;
  config.tokens_ahead = 1;
  Scheduler scheduler(config);
  BlockKeyHasher hasher(4, config.tokens_ahead);
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  BlockKeys keys = hasher.Start("");
  hasher.Extend(tokens, keys);
  scheduler.Add({.id = 1, .prompt_length = 7, .keys = &keys});
  const StepPlan prompt = scheduler.Plan();
  const StepPlan decode = scheduler.Plan();
  // The first block would be complete after the step in flight.
  BlockKeys other = hasher.Start("");
  hasher.Extend(tokens, other);
  scheduler.Add({.id = 2, .prompt_length = 7, .keys = &other});
  tokens.push_back(8);
  hasher.Extend(tokens, keys);
  EXPECT_FALSE(scheduler.pool().Holds(keys.blocks[0]));
  scheduler.Commit(prompt.requests.at(0), 0, 1, 0);
  EXPECT_TRUE(scheduler.pool().Holds(keys.blocks[0]));
  // With a step in flight that will complete the second block, the first is found.
  const StepPlan third = scheduler.Plan();
  ASSERT_THAT(third.admitted, SizeIs(1));
  EXPECT_EQ(third.admitted[0].cached_tokens, 4);
}

}  // namespace
}  // namespace outrider
