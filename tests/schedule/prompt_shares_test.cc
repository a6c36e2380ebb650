// How the prompt rows of a step are shared: scenarios, then the two promises on random workloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "outrider/schedule/scheduler.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int32_t kStepRows = 128;  // of a step

SchedulerConfig SharesConfig(int32_t num_pages = 4096) {
  return {.cache = FullHistoryCache(num_pages, 4),
          .max_num_seqs = 64,
          .max_num_batched_tokens = kStepRows,
          .max_model_len = 4096};
}

using SharedRows = std::map<RequestId, int32_t>;

/// Runs one step: the rows that each prompt got. Requests that got their first token are removed.
SharedRows RunStep(Scheduler& scheduler, std::vector<RequestId>* answered = nullptr) {
  const StepPlan& plan = scheduler.Plan();
  SharedRows rows;
  for (const PlannedRequest& r : plan.requests) {
    rows[r.id] = r.num_tokens;
    scheduler.Commit(r, 0, r.samples ? 1 : 0, 0);
    if (!r.samples) continue;
    scheduler.Remove(r.id);
    if (answered != nullptr) answered->push_back(r.id);
  }
  return rows;
}

TEST(PromptSharesTest, AShortPromptDoesNotWaitForTheEndOfALongOne) {
  Scheduler scheduler(SharesConfig());
  scheduler.Add({.id = 1, .prompt_length = 4000});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
  scheduler.Add({.id = 2, .prompt_length = 30});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 98), Pair(2, 30)));
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
}

TEST(PromptSharesTest, ShortOnesGetHalfTheShortestFirst) {
  Scheduler scheduler(SharesConfig());
  scheduler.Add({.id = 1, .prompt_length = 4000});
  scheduler.Add({.id = 2, .prompt_length = 500});
  scheduler.Add({.id = 3, .prompt_length = 60});
  scheduler.Add({.id = 4, .prompt_length = 50});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 64), Pair(3, 14), Pair(4, 50)));
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 64), Pair(2, 18), Pair(3, 46)));
}

// Shared rows would only make both late.
TEST(PromptSharesTest, PromptsOfLikeLengthsRunOneAfterTheOther) {
  Scheduler scheduler(SharesConfig());
  scheduler.Add({.id = 1, .prompt_length = 256});
  scheduler.Add({.id = 2, .prompt_length = 256});
  scheduler.Add({.id = 3, .prompt_length = 128});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(2, 128)));
}

TEST(PromptSharesTest, WhatIsLeftBehindAPromptsEndIsSharedToo) {
  Scheduler scheduler(SharesConfig());
  scheduler.Add({.id = 1, .prompt_length = 28});
  scheduler.Add({.id = 2, .prompt_length = 4000});
  scheduler.Add({.id = 3, .prompt_length = 30});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 28), Pair(2, 70), Pair(3, 30)));
}

TEST(PromptSharesTest, PriorityComesBeforeLength) {
  Scheduler scheduler(SharesConfig());
  scheduler.Add({.id = 1, .prompt_length = 4000});
  scheduler.Add({.id = 2, .prompt_length = 30, .priority = 1});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
  scheduler.Add({.id = 3, .prompt_length = 2000, .priority = -1});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(3, 128)));
}

TEST(PromptSharesTest, WhatIsCachedMakesAPromptShort) {
  Scheduler scheduler(SharesConfig());
  BlockKeyHasher hasher(4, 0);
  const std::vector<int32_t> tokens(1000, 7);
  BlockKeys keys = hasher.Start("");
  hasher.Extend(tokens, keys);
  scheduler.Add({.id = 1, .prompt_length = 990, .keys = &keys});
  while (!RunStep(scheduler).empty()) {
  }
  scheduler.Add({.id = 2, .prompt_length = 1000});
  scheduler.Add({.id = 3, .prompt_length = 1000, .keys = &keys});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(2, 116), Pair(3, 12)));
}

TEST(PromptSharesTest, NobodyPassesWhomHeWouldTakeTheSlotOrThePagesOf) {
  SchedulerConfig config = SharesConfig();
  config.max_num_seqs = 2;
  Scheduler slots(config);
  slots.Add({.id = 1, .prompt_length = 4000});
  slots.Add({.id = 2, .prompt_length = 3000});
  slots.Add({.id = 3, .prompt_length = 10});
  EXPECT_THAT(RunStep(slots), ElementsAre(Pair(1, 128)));

  Scheduler pages(SharesConfig(1100));
  pages.Add({.id = 1, .prompt_length = 4000});  // 1001 of 1100 pages
  pages.Add({.id = 2, .prompt_length = 300});   // 76
  pages.Add({.id = 3, .prompt_length = 100});   // 26: three too many beside the second
  EXPECT_THAT(RunStep(pages), ElementsAre(Pair(1, 64), Pair(2, 64)));
}

// Prompts that wait behind the next one need not have room as well: choices of one prompt, say.
TEST(PromptSharesTest, AShortPromptPassesManyLongOnesThatWait) {
  Scheduler scheduler(SharesConfig(2100));
  for (RequestId id = 1; id <= 5; ++id) scheduler.Add({.id = id, .prompt_length = 4000});
  scheduler.Add({.id = 6, .prompt_length = 30});
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 98), Pair(6, 30)));
  EXPECT_THAT(RunStep(scheduler), ElementsAre(Pair(1, 128)));
}

/// Steps that so many rows take if each step has `per_step` of them.
int64_t StepsFor(int64_t rows, int64_t per_step) { return (rows + per_step - 1) / per_step; }

// However many come after it, a prompt waits at most twice as long as if all ran one after the
// other.
RC_GTEST_PROP(PromptSharesProperty, WhatComesLaterTakesAtMostHalfOfAPromptsRows, (uint32_t seed)) {
  std::mt19937 random(seed);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  Scheduler scheduler(SharesConfig(1 << 16));
  std::map<RequestId, int64_t> left;      // rows of those without a first token
  std::map<RequestId, int64_t> deadline;  // of each, the step that gives it one at the latest
  const auto count = static_cast<RequestId>(uniform(2, 40));
  RequestId next_id = 1;
  for (int64_t step = 0; next_id <= count || !left.empty(); ++step) {
    for (int32_t n = uniform(0, 3); n > 0 && next_id <= count; --n, ++next_id) {
      const int32_t length = uniform(1, uniform(0, 2) == 0 ? 4000 : 100);
      scheduler.Add({.id = next_id, .prompt_length = length});
      left[next_id] = length;
      int64_t until_its_end = 0;
      for (const auto& [id, rows] : left) until_its_end += rows;
      deadline[next_id] = step + StepsFor(until_its_end, kStepRows / 2) - 1;
    }
    int64_t known = 0;
    for (const auto& [id, rows] : left) known += rows;
    std::vector<RequestId> answered;
    int64_t run = 0;
    for (const auto& [id, rows] : RunStep(scheduler, &answered)) {
      left.at(id) -= rows;
      run += rows;
    }
    RC_ASSERT(run == std::min<int64_t>(known, kStepRows));  // no row is left unused
    for (const RequestId id : answered) {
      RC_ASSERT(left.at(id) == 0);
      left.erase(id);
    }
    for (const auto& [id, rows] : left) RC_ASSERT(step < deadline.at(id));
  }
}

// A short prompt's wait depends on the short ones alone, not on how much the long ones have left.
RC_GTEST_PROP(PromptSharesProperty, AShortPromptsWaitDoesNotGrowWithTheLongOnes, (uint32_t seed)) {
  std::mt19937 random(seed);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  Scheduler scheduler(SharesConfig(1 << 16));
  RequestId next_id = 1;
  for (int32_t n = uniform(1, 4); n > 0; --n) {
    scheduler.Add({.id = next_id++, .prompt_length = uniform(2000, 4000)});
  }
  for (int32_t steps = uniform(0, 3); steps > 0; --steps) RunStep(scheduler);
  std::set<RequestId> short_ones;
  int64_t rows = 0;
  for (int32_t n = uniform(1, 9); n > 0; --n) {
    const int32_t length = uniform(1, 80);
    scheduler.Add({.id = next_id, .prompt_length = length});
    short_ones.insert(next_id++);
    rows += length;
  }
  for (int64_t step = StepsFor(rows, kStepRows / 2); step > 0; --step) {
    std::vector<RequestId> answered;
    RunStep(scheduler, &answered);
    for (const RequestId id : answered) short_ones.erase(id);
  }
  RC_ASSERT(short_ones.empty());
}

}  // namespace
}  // namespace outrider
