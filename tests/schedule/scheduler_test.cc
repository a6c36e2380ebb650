// Scenarios, then random workloads against the scheduler's rules.
#include "outrider/schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "tests/schedule/random_groups.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

SchedulerConfig Config() {
  return {.cache = FullHistoryCache(64, 4),
          .max_num_seqs = 8,
          .max_num_batched_tokens = 128,
          .max_model_len = 100,
          .max_drafts = 8,
          .lookahead_tokens = 2};
}

std::vector<RequestId> Ids(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const PlannedRequest& r : plan.requests) ids.push_back(r.id);
  return ids;
}

std::vector<RequestId> Admitted(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const Admission& a : plan.admitted) ids.push_back(a.id);
  return ids;
}

/// Every sampled request emits one token and asks for `drafts` drafts, none accepted before.
void CommitAll(Scheduler& scheduler, const StepPlan& plan, int32_t drafts) {
  for (const PlannedRequest& r : plan.requests) {
    scheduler.Commit(r, 0, r.samples ? 1 : 0, r.samples ? drafts : 0);
  }
}

TEST(SchedulerTest, PromptThenDecodeWithDrafts) {
  Scheduler scheduler(Config());
  scheduler.Add({.id = 1, .prompt_length = 10});
  const StepPlan& plan = scheduler.Plan();
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].phase, Phase::kPromptEnd);
  EXPECT_EQ(plan.requests[0].num_tokens, 10);
  EXPECT_THAT(Admitted(plan), ElementsAre(1));
  scheduler.Commit(plan.requests[0], 0, 1, 3);

  const PlannedRequest decode = scheduler.Plan().requests.at(0);
  EXPECT_EQ(decode.phase, Phase::kDecode);
  EXPECT_EQ(decode.context_length, 10);
  EXPECT_EQ(decode.num_tokens, 1);
  EXPECT_EQ(decode.num_drafts, 3);
  EXPECT_TRUE(decode.samples);
  // Positions 10..13 and two more for the drafter: 16 positions, 4 blocks.
  EXPECT_EQ(decode.tables->blocks(0).size(), 4U);
  scheduler.Commit(decode, 2, 3, 1);

  const PlannedRequest next = scheduler.Plan().requests.at(0);
  EXPECT_EQ(next.context_length, 13);
  EXPECT_EQ(next.num_drafts, 1);
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.pool().num_free(), 64);
}

// Drafts that are not made take neither rows of the budget nor pages.
TEST(SchedulerTest, WithoutDraftsNoneArePlannedWhereThereWereSomeBefore) {
  Scheduler scheduler(Config());
  scheduler.Add({.id = 1, .prompt_length = 10});
  scheduler.Commit(scheduler.Plan().requests.at(0), 0, 1, 3);
  scheduler.Commit(scheduler.Plan().requests.at(0), 2, 3, 0);
  EXPECT_EQ(scheduler.Plan().requests.at(0).num_drafts, 0);
}

TEST(SchedulerTest, LongPromptsAreCutAndOnlyTheEndIsSampled) {
  SchedulerConfig config = Config();
  config.max_num_batched_tokens = 16;
  Scheduler scheduler(config);
  scheduler.Add({.id = 1, .prompt_length = 40});
  std::vector<int32_t> chunks;
  for (int i = 0; i < 3; ++i) {
    const StepPlan& plan = scheduler.Plan();
    chunks.push_back(plan.requests.at(0).num_tokens);
    EXPECT_EQ(plan.requests[0].samples, i == 2);
    EXPECT_EQ(plan.requests[0].phase, i == 2 ? Phase::kPromptEnd : Phase::kPromptChunk);
    CommitAll(scheduler, plan, 0);
  }
  EXPECT_THAT(chunks, ElementsAre(16, 16, 8));
}

TEST(SchedulerTest, DecodesComeFirstAndPromptsFillTheBudget) {
  SchedulerConfig config = Config();
  config.max_num_batched_tokens = 70;
  Scheduler scheduler(config);
  scheduler.Add({.id = 1, .prompt_length = 5});
  scheduler.Add({.id = 2, .prompt_length = 5});
  CommitAll(scheduler, scheduler.Plan(), 2);
  scheduler.Add({.id = 3, .prompt_length = 50});
  scheduler.Add({.id = 4, .prompt_length = 50});
  const StepPlan& plan = scheduler.Plan();
  EXPECT_THAT(Ids(plan), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(plan.requests[2].num_tokens, 50);
  EXPECT_EQ(plan.requests[3].num_tokens, 70 - 6 - 50);
}

TEST(SchedulerTest, DecodeRowsNeverStarvePrompts) {
  SchedulerConfig config = Config();
  config.max_num_batched_tokens = 65;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 7; ++id) scheduler.Add({.id = id, .prompt_length = 2});
  CommitAll(scheduler, scheduler.Plan(), 8);
  scheduler.Add({.id = 8, .prompt_length = 90});
  const StepPlan& plan = scheduler.Plan();  // 7 * 9 = 63 decode rows of a budget of 65
  ASSERT_EQ(plan.requests.size(), 8U);
  EXPECT_EQ(plan.requests.back().num_tokens, Scheduler::kMinPromptTokens);
}

TEST(SchedulerTest, SlotsAndBlocksBoundAdmissionInOrderOfArrival) {
  SchedulerConfig config = Config();
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 3; ++id) scheduler.Add({.id = id, .prompt_length = 4});
  EXPECT_THAT(Ids(scheduler.Plan()), ElementsAre(1, 2));
  scheduler.Remove(1);
  EXPECT_THAT(Admitted(scheduler.Plan()), ElementsAre(3));

  config = Config();
  config.cache.num_pages = 30;
  Scheduler tight(config);
  tight.Add({.id = 1, .prompt_length = 90});  // 24 blocks
  tight.Add({.id = 2, .prompt_length = 50});  // 14: must wait
  tight.Add({.id = 3, .prompt_length = 4});   // 2: would fit, but came later
  EXPECT_THAT(Ids(tight.Plan()), ElementsAre(1));
}

TEST(SchedulerTest, PreemptsTheYoungestAndReplaysItsTokens) {
  SchedulerConfig config = Config();
  config.cache.num_pages = 25;
  config.lookahead_tokens = 0;
  Scheduler scheduler(config);
  scheduler.Add({.id = 1, .prompt_length = 39});  // 10 blocks
  scheduler.Add({.id = 2, .prompt_length = 39});
  CommitAll(scheduler, scheduler.Plan(), 0);
  int steps = 0;
  while (scheduler.num_waiting() == 0) {
    CommitAll(scheduler, scheduler.Plan(), 0);
    ASSERT_LT(++steps, 50);
  }
  EXPECT_EQ(scheduler.num_running(), 1);
  scheduler.Remove(1);
  const PlannedRequest prompt = scheduler.Plan().requests.at(0);
  EXPECT_EQ(prompt.id, 2U);
  EXPECT_EQ(prompt.phase, Phase::kPromptChunk);  // its next token is known: nothing to sample
  EXPECT_EQ(prompt.num_tokens, 39);
  EXPECT_FALSE(prompt.samples);
  scheduler.Commit(prompt, 0, 0, 0);
  const PlannedRequest replay = scheduler.Plan().requests.at(0);
  EXPECT_EQ(replay.phase, Phase::kDecode);
  EXPECT_GT(replay.num_tokens, 1);
  EXPECT_TRUE(replay.samples);
}

/// Random arrivals, drafts, acceptance, finishes; the rules hold in every plan.
RC_GTEST_PROP(SchedulerProperty, RulesHoldOnRandomWorkloads, ()) {
  SchedulerConfig config;
  config.max_model_len = *rc::gen::inRange(8, 60);
  config.max_num_seqs = *rc::gen::inRange(1, 6);
  config.max_num_batched_tokens = *rc::gen::inRange(1, 80);
  config.max_drafts = 4;
  config.lookahead_tokens = *rc::gen::inRange(0, 3);
  config.cache =
      RandomCacheGroups(config.max_model_len,
                        std::max(config.max_num_batched_tokens, 5) + 1 + config.lookahead_tokens,
                        *rc::gen::inRange(0, 3));
  config.cache_ranks = *rc::gen::element(1, 1, 2, 3);
  Scheduler scheduler(config);

  struct Shadow {
    int32_t prompt;
    int32_t tokens;
    int32_t computed = 0;
    int32_t drafts = 0;
    int32_t limit;
  };
  std::map<RequestId, Shadow> live;
  RequestId next_id = 1;
  int finished = 0;
  const uint64_t seed = *rc::gen::arbitrary<uint64_t>();
  uint64_t state = seed;
  const auto random = [&](int32_t low, int32_t high) {  // [low, high]
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return low + static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(high - low + 1));
  };
  for (int step = 0; step < 300; ++step) {
    if (random(0, 2) == 0 && live.size() < 12) {
      const int32_t prompt = random(1, config.max_model_len - 1);
      scheduler.Add({.id = next_id, .prompt_length = prompt});
      live[next_id++] = {prompt, prompt, 0, 0, random(prompt + 1, config.max_model_len)};
    }
    const StepPlan& plan = scheduler.Plan();
    for (const RequestId id : plan.preempted) {
      live.at(id).computed = 0;
      live.at(id).drafts = 0;
    }
    RC_ASSERT(plan.requests.empty() == live.empty());
    std::set<RequestId> planned;
    std::set<int32_t> slots;
    std::multiset<int32_t> blocks;
    int32_t decode_rows = 0;
    int32_t other_rows = 0;
    for (const PlannedRequest& r : plan.requests) {
      const Shadow& s = live.at(r.id);
      RC_ASSERT(planned.insert(r.id).second);
      RC_ASSERT(slots.insert(r.slot).second);
      RC_ASSERT(r.context_length == s.computed);
      RC_ASSERT(r.num_tokens >= 1 && r.context_length + r.num_tokens <= s.tokens);
      RC_ASSERT(r.samples == (r.context_length + r.num_tokens == s.tokens));
      // A chunk has one role.
      RC_ASSERT((r.phase == Phase::kDecode) == (r.context_length >= s.prompt));
      RC_ASSERT(r.phase == Phase::kDecode || r.context_length + r.num_tokens <= s.prompt);
      RC_ASSERT(r.num_drafts == 0 || r.samples);
      const int32_t rows = r.num_tokens + r.num_drafts;
      for (int32_t g = 0; g < r.tables->num_groups(); ++g) {
        const CacheGroupSpec& spec = config.cache.groups[static_cast<size_t>(g)];
        const std::span<const int32_t> pages = r.tables->blocks(g);
        RC_ASSERT(
            int64_t{spec.tokens_per_block} * static_cast<int64_t>(pages.size()) >=
            std::min(r.context_length + rows + config.lookahead_tokens, config.max_model_len));
        const int32_t unread =
            spec.BlocksUnreadFrom(std::max(0, r.context_length - config.cache.rerun_tokens));
        for (size_t b = 0; b < pages.size(); ++b) {
          // What no row reads any more is given back, everything else is held.
          RC_ASSERT((pages[b] == CacheTables::kNoPage) == (static_cast<int32_t>(b) < unread));
          if (pages[b] != CacheTables::kNoPage) blocks.insert(pages[b]);
        }
      }
      (r.phase == Phase::kDecode && r.num_tokens == 1 ? decode_rows : other_rows) += rows;
    }
    RC_ASSERT(other_rows <=
              std::max(config.max_num_batched_tokens - decode_rows, Scheduler::kMinPromptTokens));
    for (const int32_t b : blocks) RC_ASSERT(blocks.count(b) == 1U);
    // Who can decode is never passed over.
    for (const auto& [id, s] : live) {
      const bool decodes = s.computed >= s.prompt && s.computed + 1 == s.tokens;
      if (decodes) RC_ASSERT(planned.contains(id));
    }
    // The oldest request is in every plan, or waits for pages of short ones that overtook it while
    // an older one was waiting. Nobody comes in before it then.
    if (!live.empty() && !planned.contains(live.begin()->first)) {
      RC_ASSERT(plan.admitted.empty());
    }

    const std::vector<PlannedRequest> requests = plan.requests;
    for (const PlannedRequest& r : requests) {
      Shadow& s = live.at(r.id);
      const int32_t accepted = r.num_drafts > 0 ? random(0, r.num_drafts) : 0;
      const int32_t emitted = r.samples ? std::min(accepted + 1, s.limit - s.tokens) : 0;
      if (r.samples && (s.tokens + emitted >= s.limit || random(0, 19) == 0)) {
        scheduler.Remove(r.id);
        live.erase(r.id);
        ++finished;
        continue;
      }
      const int32_t useful = std::max(0, s.limit - s.tokens - emitted - 1);
      const int32_t drafts = r.samples ? std::min(random(0, 4), useful) : 0;
      scheduler.Commit(r, accepted, emitted, drafts);
      s.computed += r.num_tokens + accepted;
      s.tokens += emitted;
      s.drafts = drafts;
    }
  }
  while (!live.empty()) {
    scheduler.Remove(live.begin()->first);
    live.erase(live.begin());
  }
  for (int32_t rank = 0; rank < config.cache_ranks; ++rank) {
    RC_ASSERT(scheduler.pool(rank).num_free() == config.cache.num_pages);
  }
  RC_ASSERT(scheduler.num_running() == 0 && scheduler.num_waiting() == 0);
  RC_ASSERT(finished > 0);
}

}  // namespace
}  // namespace outrider
