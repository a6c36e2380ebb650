// Prefix hits change what is computed, never what comes out.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/engine/test_engine.h"

namespace outrider {
namespace {

std::vector<int32_t> DrawTokens(std::mt19937& random, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(6 + random() % 1500));
  return tokens;
}

GenerationRequest CacheRequest(std::vector<int32_t> prompt, float temperature) {
  GenerationRequest request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.seed = 7;
  request.sampling.max_tokens = 12;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 2;
  return request;
}

void ExpectSame(const Generated& a, const Generated& b, const std::string& what) {
  ASSERT_EQ(a.tokens, b.tokens) << what;
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a.logprobs[i].chosen.logprob),
              std::bit_cast<uint32_t>(b.logprobs[i].chosen.logprob))
        << what << " token " << i;
  }
}

class PrefixCacheTest : public testing::TestWithParam<DrafterKind> {};

TEST_P(PrefixCacheTest, SharedBeginningsOfManyLengthsGiveTheBitsOfAColdCache) {
  TestEngineOptions options{.drafter = GetParam(), .k = 3, .max_num_batched_tokens = 41};
  options.block_size = 8;
  const auto warm = MakeTestEngine(options);
  options.prefix_caching = false;
  const auto cold = MakeTestEngine(options);
  std::mt19937 random(3);
  const std::vector<int32_t> common = DrawTokens(random, 64);
  int64_t cached = 0;
  // Hits that end on a block's edge, and within 1 .. 4 tokens of the prompt's end.
  for (const size_t shared : {64U, 63U, 40U, 33U, 9U}) {
    for (const int32_t own : {0, 1, 3, 20}) {
      std::vector<int32_t> prompt(common.begin(), common.begin() + static_cast<int64_t>(shared));
      const std::vector<int32_t> rest = DrawTokens(random, own);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const GenerationRequest request = CacheRequest(prompt, own % 2 == 0 ? 0.0F : 1.0F);
      const Generated a = RunOne(*warm, request);
      const Generated b = RunOne(*cold, request);
      ExpectSame(a, b, fmt::format("shared {} own {}", shared, own));
      if (HasFatalFailure()) return;
      // Drafter entries behind a hit are as good as computed ones: the same drafts are accepted.
      ASSERT_EQ(a.stats.speculation.num_accepted_tokens, b.stats.speculation.num_accepted_tokens);
      ASSERT_EQ(b.stats.cached_tokens, 0);
      cached += a.stats.cached_tokens;
    }
  }
  EXPECT_GT(cached, 200);
  EXPECT_EQ(warm->Counters().prefix_cache_hits, cached);
  EXPECT_EQ(warm->Counters().kv_cache_usage, 0);
}

/// Turns of a conversation, each prompt the whole of it so far: the bits of a cold cache, and hits.
void ExpectConversationSame(TestEngineOptions options, int64_t least_cached) {
  options.block_size = 4;
  options.k = 2;
  const auto warm = MakeTestEngine(options);
  options.prefix_caching = false;
  const auto cold = MakeTestEngine(options);
  std::mt19937 random(4);
  std::vector<int32_t> conversation = DrawTokens(random, 21);
  for (int turn = 0; turn < 4; ++turn) {
    const GenerationRequest request = CacheRequest(conversation, 0.8F);
    const Generated a = RunOne(*warm, request);
    ExpectSame(a, RunOne(*cold, request), fmt::format("turn {}", turn));
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_GE(a.stats.cached_tokens, turn == 0 ? 0 : least_cached);
    conversation.insert(conversation.end(), a.tokens.begin(), a.tokens.end());
    const std::vector<int32_t> question = DrawTokens(random, 5);
    conversation.insert(conversation.end(), question.begin(), question.end());
  }
}

TEST_P(PrefixCacheTest, AConversationKeepsItsBits) {
  ExpectConversationSame({.drafter = GetParam()}, 16);
}

TEST_P(PrefixCacheTest, PerHeadEntriesKeepThemAndFindAnswersToo) {
  // More than the first prompt's blocks.
  ExpectConversationSame({.drafter = GetParam(), .cache_form = KvCacheForm::kHeads}, 28);
}

TEST_P(PrefixCacheTest, FastPrefixFindsEarlierAnswers) {
  TestEngineOptions options{.drafter = GetParam(), .k = 3, .fast_prefix = true};
  options.block_size = 4;
  const auto engine = MakeTestEngine(options);
  std::mt19937 random(5);
  std::vector<int32_t> conversation = DrawTokens(random, 21);
  const Generated first = RunOne(*engine, CacheRequest(conversation, 0));
  conversation.insert(conversation.end(), first.tokens.begin(), first.tokens.end());
  const size_t so_far = conversation.size();
  for (const int32_t token : DrawTokens(random, 6)) conversation.push_back(token);
  const Generated second = RunOne(*engine, CacheRequest(conversation, 0));
  // All but the last token, which has no row, and the block that it ends in.
  EXPECT_GE(second.stats.cached_tokens, static_cast<int64_t>(so_far) - 1 - 3 - 3);
}

// What ends with the step that computes its prompt: classification, scoring, warming of the cache.
TEST_P(PrefixCacheTest, APromptOfOneStepIsFoundAgain) {
  for (const bool varies : {false, true}) {
    for (const bool queued : {false, true}) {
      TestEngineOptions options{.drafter = GetParam(), .k = 2, .block_size = 8, .queued = queued};
      if (varies) options.draft_ranges = {{1, 1, 2}, {2, 100, 0}};
      const auto warm = MakeTestEngine(options);
      options.prefix_caching = false;
      const auto cold = MakeTestEngine(options);
      std::mt19937 random(9);
      const std::vector<int32_t> prompt = DrawTokens(random, 52);
      GenerationRequest once = CacheRequest(prompt, 0);
      once.sampling.max_tokens = 1;
      EXPECT_EQ(RunOne(*warm, once).stats.cached_tokens, 0);
      const Generated again = RunOne(*warm, once);
      EXPECT_EQ(again.stats.cached_tokens, 48);
      ExpectSame(again, RunOne(*cold, once), "the same once more");
      // Modules' entries are as if they had been computed here.
      const GenerationRequest longer = CacheRequest(prompt, 0);
      const Generated a = RunOne(*warm, longer);
      const Generated b = RunOne(*cold, longer);
      EXPECT_EQ(a.stats.cached_tokens, 48);
      ExpectSame(a, b, "a longer answer");
      EXPECT_EQ(a.stats.speculation.num_accepted_tokens, b.stats.speculation.num_accepted_tokens);
    }
  }
}

TEST_P(PrefixCacheTest, APromptThatIsScoredIsFoundAgain) {
  const auto engine = MakeTestEngine({.drafter = GetParam(), .k = 2, .block_size = 8});
  std::mt19937 random(10);
  GenerationRequest scored = CacheRequest(DrawTokens(random, 52), 0);
  scored.sampling.max_tokens = 1;
  scored.sampling.prompt_logprobs = 1;
  const Generated first = RunOne(*engine, scored);
  const Generated second = RunOne(*engine, scored);  // every row of it is wanted
  EXPECT_EQ(second.stats.cached_tokens, 0);
  EXPECT_EQ(second.prompt_logprobs.size(), first.prompt_logprobs.size());
  scored.sampling.prompt_logprobs.reset();
  EXPECT_EQ(RunOne(*engine, scored).stats.cached_tokens, 48);
  EXPECT_EQ(engine->Counters().prefix_cache_queries, 52);  // of those that may share
}

// The token that ends a request may be an accepted draft, with others behind it.
TEST_P(PrefixCacheTest, WhatEndsInTheMiddleOfAWindowIsPublishedUpToItsEnd) {
  for (const bool queued : {false, true}) {
    TestEngineOptions options{.drafter = GetParam(),
                              .k = 3,
                              .block_size = 1,
                              .max_model_len = 200,
                              .fast_prefix = true,
                              .queued = queued};
    const auto engine = MakeTestEngine(options);
    std::mt19937 random(11);
    for (int round = 0; round < 5; ++round) {
      GenerationRequest request = CacheRequest(DrawTokens(random, 30), 0);
      request.sampling.max_tokens = 20;
      const Generated whole = RunOne(*engine, request);
      request.cache_salt = std::to_string(round);
      const auto end = static_cast<size_t>(3 + round);
      request.sampling.stop_token_ids = {whole.tokens.at(end)};
      const Generated cut = RunOne(*engine, request);
      ASSERT_LE(cut.tokens.size(), end + 1);
      std::vector<int32_t>& prompt = request.prompt_token_ids;
      prompt.insert(prompt.end(), cut.tokens.begin(), cut.tokens.end());
      const auto so_far = static_cast<int64_t>(prompt.size());
      for (const int32_t token : DrawTokens(random, 5)) prompt.push_back(token);
      const int64_t ahead = GetParam() == DrafterKind::kChain      ? 3
                            : GetParam() == DrafterKind::kRepeated ? 1
                                                                   : 0;
      EXPECT_EQ(RunOne(*engine, request).stats.cached_tokens, so_far - std::max<int64_t>(ahead, 1));
    }
  }
}

// While a crowd runs, no module does: two requests find blocks that no module has finished. When
// the crowd is gone they catch up in one pass, one with many rows of its own, the other with few.
TEST_P(PrefixCacheTest, SharersOfBlocksThatModulesHaveNotFinishedCatchUpTogether) {
  if (GetParam() == DrafterKind::kNone) GTEST_SKIP() << "there are no modules without a drafter";
  std::mt19937 random(8);
  for (const bool few_first : {true, false}) {
    const auto engine = MakeTestEngine(
        {.drafter = GetParam(), .k = 3, .draft_ranges = {{1, 2, 3}, {3, 100, 0}}, .block_size = 8});
    const auto alone = MakeTestEngine({.drafter = DrafterKind::kNone, .prefix_caching = false});
    std::vector<Generated> crowd(3);
    std::vector<RequestId> ids;
    for (Generated& one : crowd) {
      GenerationRequest request = CacheRequest(DrawTokens(random, 10), 0);
      request.sampling.max_tokens = 500;
      ids.push_back(Submit(*engine, request, &one));
    }
    for (int i = 0; i < 3; ++i) engine->Step();
    const std::vector<int32_t> common = DrawTokens(random, 48);
    Generated source;
    Submit(*engine, CacheRequest(common, 0), &source);
    while (!source.finish_reason) engine->Step();

    std::vector<GenerationRequest> sharers;
    for (const int32_t own : {few_first ? 3 : 90, few_first ? 90 : 3}) {
      std::vector<int32_t> prompt = common;
      for (const int32_t token : DrawTokens(random, own)) prompt.push_back(token);
      sharers.push_back(CacheRequest(prompt, 0));
      sharers.back().sampling.max_tokens = 30;
    }
    std::vector<Generated> together(sharers.size());
    for (size_t i = 0; i < sharers.size(); ++i) Submit(*engine, sharers[i], &together[i]);
    for (int i = 0; i < 4; ++i) engine->Step();
    EXPECT_EQ(engine->Counters().num_speculative_tokens, 0);
    for (const RequestId id : ids) engine->Abort(id);
    engine->Step();
    EXPECT_EQ(engine->Counters().num_speculative_tokens, 3);
    RunUntilIdle(*engine);
    for (size_t i = 0; i < sharers.size(); ++i) {
      ExpectSame(together[i], RunOne(*alone, sharers[i]), fmt::format("sharer {}", i));
      EXPECT_GE(together[i].stats.cached_tokens, 40);
      EXPECT_GT(together[i].stats.speculation.num_draft_tokens, 0);
    }
  }
}

TEST_P(PrefixCacheTest, OtherSaltsShareNothing) {
  TestEngineOptions options{.drafter = GetParam()};
  options.block_size = 4;
  const auto engine = MakeTestEngine(options);
  std::mt19937 random(6);
  GenerationRequest request = CacheRequest(DrawTokens(random, 40), 0);
  RunOne(*engine, request);
  request.cache_salt = "tenant";
  EXPECT_EQ(RunOne(*engine, request).stats.cached_tokens, 0);
  EXPECT_EQ(RunOne(*engine, request).stats.cached_tokens, 36);
}

INSTANTIATE_TEST_SUITE_P(Drafters, PrefixCacheTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated),
                         [](const auto& test) {
                           return test.param == DrafterKind::kNone
                                      ? "None"
                                      : (test.param == DrafterKind::kChain ? "Chain" : "Repeated");
                         });

}  // namespace
}  // namespace outrider
