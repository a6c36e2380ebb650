// An engine over a network of two cache groups: pages that left the window are free while the
// request runs, prefix hits resume where both groups can, and tokens do not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/engine/random_requests.h"
#include "tests/networks/small_step_model.h"

namespace outrider {
namespace {

constexpr int32_t kWindow = 20;

/// A step of 32 rows at most; blocks of 4 tokens for the windows.
TestEngineOptions WindowOptions(const SmallStepModel& model) {
  TestEngineOptions options;
  options.checkpoint = model.directory();
  options.dummy_seed = 3;
  options.cache_form = KvCacheForm::kHeads;
  options.block_size = 4;
  options.max_num_batched_tokens = 32;
  options.max_model_len = 800;
  options.num_blocks = 600;
  return options;
}

GenerationRequest LongRequest(uint32_t seed, int32_t prompt, int32_t answer) {
  std::mt19937 random(seed);
  GenerationRequest request;
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt_token_ids.push_back(static_cast<int32_t>(6 + random() % 1500));
  }
  request.sampling.temperature = 0.8F;
  request.sampling.seed = seed;
  request.sampling.max_tokens = answer;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  return request;
}

int64_t PagesInUse(const Engine& engine) {
  const EngineCounters counters = engine.Counters();
  return std::lround(counters.kv_cache_usage * counters.num_kv_blocks);
}

TEST(WindowGroupsTest, PagesThatLeftTheWindowAreFreedWhileTheRequestRuns) {
  const SmallStepModel model(1600, kWindow);
  TestEngineOptions options = WindowOptions(model);
  options.prefix_caching = false;
  const CacheConfig cache = TestCacheConfig(options);
  ASSERT_EQ(cache.groups.size(), 2U);
  const CacheGroupSpec& full = cache.groups[0];
  const CacheGroupSpec& window = cache.groups[1];
  ASSERT_EQ(window.kind, CacheGroupKind::kSlidingWindow);
  ASSERT_EQ(window.window, kWindow);
  const auto engine = MakeTestEngine(options);
  Generated out;
  Submit(*engine, LongRequest(1, 400, 200), &out);
  int64_t most = 0;
  while (engine->Step()) most = std::max(most, PagesInUse(*engine));
  ASSERT_EQ(out.tokens.size(), 200U);
  // Full history: 600 tokens. The window: the last 20 and the modules' rows that may run again, and
  // what the last step wrote (its 32 rows are behind it by then).
  const int64_t kept = kWindow + 2 + 1 + options.k;
  EXPECT_LE(most, full.BlocksBefore(600) + kept / window.tokens_per_block + 2);
  EXPECT_GE(most, full.BlocksBefore(590) + kWindow / window.tokens_per_block);
  EXPECT_EQ(PagesInUse(*engine), 0);
}

TEST(WindowGroupsTest, APoolThatHoldsTheWindowsOnlyRunsWithoutPreemption) {
  const SmallStepModel model(1600, kWindow);
  TestEngineOptions options = WindowOptions(model);
  options.prefix_caching = false;
  const CacheConfig cache = TestCacheConfig(options);
  // Three requests of 600 tokens. Without freeing their windows alone would take 450 pages.
  constexpr int32_t kStep = 32 + 1 + 3;
  options.max_model_len = 600;
  options.num_blocks = static_cast<int32_t>(3 * cache.MostPages(600, kStep));
  ASSERT_LT(options.num_blocks, 450);
  const auto engine = MakeTestEngine(options);
  std::vector<Generated> out(3);
  for (uint32_t i = 0; i < 3; ++i) Submit(*engine, LongRequest(i, 300, 290), &out[i]);
  RunUntilIdle(*engine);
  EXPECT_EQ(engine->Counters().num_preemptions, 0);
  for (const Generated& g : out) EXPECT_EQ(g.tokens.size(), 290U);
}

/// What a drafter proposes depends on all that it keeps: in a crowd, with prompts in chunks, prefix
/// hits and pages that are freed, drafts are those of a request alone, whose windows never leave.
TEST(WindowGroupsTest, DraftsAreThoseOfARequestAlone) {
  const SmallStepModel model(1600, kWindow);
  for (const DraftForm form : {DraftForm::kCompacted, DraftForm::kPadded}) {
    TestEngineOptions options = WindowOptions(model);
    options.draft_form = form;
    TestEngineOptions alone_options = options;
    alone_options.draft_form = DraftForm::kCompacted;
    alone_options.prefix_caching = false;
    alone_options.max_num_batched_tokens = 1024;
    alone_options.block_size = 400;
    const auto engine = MakeTestEngine(options);
    const auto alone = MakeTestEngine(alone_options);
    std::vector<GenerationRequest> requests;
    for (uint32_t i = 0; i < 8; ++i) {
      requests.push_back(LongRequest(i, 30 + 35 * static_cast<int32_t>(i), 60));
      requests.back().sampling.temperature = i % 2 == 0 ? 0.0F : 0.7F;
      requests.back().trace_steps = true;
      if (i >= 4) {  // begins as another one does
        const auto& other = requests[i - 4].prompt_token_ids;
        std::copy(other.begin(), other.end(), requests.back().prompt_token_ids.begin());
      }
    }
    const std::vector<Generated> together = RunTogether(*engine, requests, /*steps_between=*/15);
    EXPECT_GT(engine->Counters().prefix_cache_hits, 0);
    EXPECT_EQ(engine->Counters().num_preemptions, 0);
    int64_t drafts = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generated expected = RunOne(*alone, requests[i]);
      EXPECT_EQ(Difference(together[i], expected), "") << i;
      EXPECT_EQ(together[i].drafts, expected.drafts) << i;
      for (const auto& step : expected.drafts) drafts += static_cast<int64_t>(step.size());
    }
    EXPECT_GT(drafts, 1000);
  }
}

class WindowPrefixTest : public testing::TestWithParam<DrafterKind> {};

TEST_P(WindowPrefixTest, HitsResumeWhereBothGroupsCanAndChangeNothing) {
  const SmallStepModel model(1600, kWindow);
  TestEngineOptions options = WindowOptions(model);
  options.drafter = GetParam();
  const CacheConfig cache = TestCacheConfig(options);
  const int32_t resume = cache.TokensPerResume();
  ASSERT_GT(resume, cache.TokensPerKey());
  const auto engine = MakeTestEngine(options);
  TestEngineOptions alone_options = options;
  alone_options.prefix_caching = false;
  alone_options.drafter = DrafterKind::kNone;
  const auto alone = MakeTestEngine(alone_options);

  const GenerationRequest first = LongRequest(1, 401, 50);
  GenerationRequest longer = first;  // goes on differently after 300 tokens
  longer.prompt_token_ids.resize(300);
  const GenerationRequest tail = LongRequest(2, 90, 30);
  longer.prompt_token_ids.insert(longer.prompt_token_ids.end(), tail.prompt_token_ids.begin(),
                                 tail.prompt_token_ids.end());
  const auto run = [&](const GenerationRequest& request) {
    Generated got;
    const int64_t before = engine->Counters().prefix_cache_hits;
    Submit(*engine, request, &got);
    RunUntilIdle(*engine);
    const Generated expected = RunOne(*alone, request);
    EXPECT_EQ(Difference(got, expected), "");
    return engine->Counters().prefix_cache_hits - before;
  };
  EXPECT_EQ(run(first), 0);
  // One token is computed in any case, and a block's entries depend on the tokens ahead of it.
  const int32_t ahead = options.drafter == DrafterKind::kChain  ? options.k
                        : options.drafter == DrafterKind::kNone ? 0
                                                                : 1;
  EXPECT_EQ(run(first), (401 - std::max(ahead, 1)) / resume * resume);
  // The pages of the window before the common part's end were freed when they left it; nobody has
  // taken them since.
  EXPECT_EQ(run(longer), (300 - ahead) / resume * resume);

  // Others take all pages.
  std::vector<Generated> others(12);
  for (uint32_t i = 0; i < others.size(); ++i) {
    Submit(*engine, LongRequest(100 + i, 500, 100), &others[i]);
  }
  RunUntilIdle(*engine);
  EXPECT_EQ(run(first), 0);
}

INSTANTIATE_TEST_SUITE_P(Drafters, WindowPrefixTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated),
                         [](const auto& test) {
                           return test.param == DrafterKind::kNone    ? "None"
                                  : test.param == DrafterKind::kChain ? "Chain"
                                                                      : "Repeated";
                         });

}  // namespace
}  // namespace outrider
