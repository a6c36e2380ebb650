// Networks with linear attention: a request's tokens and logprob bits do not depend on drafts,
// company, chunks, preemption or what was in the prefix cache. The scenarios are those in which
// other engines went wrong with states that drafts, chunks or restores had spoilt.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

enum class Family { kLing, kKimi };

/// Tokens of the longest request.
constexpr int32_t kLongest = 10'240;

std::filesystem::path DirectoryOf(Family family) {
  static const ModelDirectory kLing(SmallLingConfig(kBundledVocab));
  static const ModelDirectory kKimi(SmallKimiConfig(kBundledVocab));
  return family == Family::kLing ? kLing.directory() : kKimi.directory();
}

TestEngineOptions OptionsOf(Family family, TestEngineOptions options) {
  options.checkpoint = DirectoryOf(family);
  options.dummy_seed = 3;
  return options;
}

/// Each alone, without drafts and prefix cache, its prompt in one chunk.
std::vector<Generated> Alone(const TestEngineOptions& given,
                             const std::vector<GenerationRequest>& requests) {
  TestEngineOptions options = {.checkpoint = given.checkpoint,
                               .dummy_seed = given.dummy_seed,
                               .dtype = given.dtype,
                               .drafter = DrafterKind::kNone,
                               .num_blocks = 4096,
                               .max_num_batched_tokens = 4096,
                               .max_model_len = kLongest,
                               .prefix_caching = false,
                               .cache_form = given.cache_form};
  const auto engine = MakeTestEngine(options);
  return RunEach(*engine, requests);
}

struct HybridCase {
  const char* name;
  Family family;
  uint32_t seed;
  TestEngineOptions options;
  bool scarce = false;
};

class HybridExactnessTest : public testing::TestWithParam<HybridCase> {};

TEST_P(HybridExactnessTest, TogetherEqualsAlone) {
  const HybridCase& test = GetParam();
  const TestEngineOptions options = OptionsOf(test.family, test.options);
  const std::vector<GenerationRequest> requests =
      RandomRequests(test.seed, kSanitized ? 10 : (test.scarce ? 32 : 24));
  const std::vector<Generated> alone = Alone(options, requests);
  const auto engine = MakeTestEngine(options);
  std::mt19937 random(test.seed);
  const std::vector<Generated> together =
      RunJoining(*engine, requests, [&] { return random() % 3; });
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(Difference(together[i], alone[i]), "") << test.name << " request " << i;
  }
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.num_requests_running + counters.num_requests_waiting, 0);
  EXPECT_EQ(counters.kv_cache_usage, 0);
  if (kSanitized) return;  // fewer requests
  EXPECT_EQ(counters.num_preemptions > 0, test.scarce);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, HybridExactnessTest,
    testing::Values(
        HybridCase{"ling_plain", Family::kLing, 1, {.drafter = DrafterKind::kNone}},
        HybridCase{"kimi_plain_small_chunks",
                   Family::kKimi,
                   2,
                   {.drafter = DrafterKind::kNone, .max_num_batched_tokens = 19, .threads = 2}},
        HybridCase{"ling_ngram3", Family::kLing, 2, {.drafter = DrafterKind::kNgram, .k = 3}},
        HybridCase{"kimi_ngram5_float32_small_chunks",
                   Family::kKimi,
                   3,
                   {.dtype = DType::kF32,
                    .drafter = DrafterKind::kNgram,
                    .k = 5,
                    .max_num_batched_tokens = 37}},
        HybridCase{"ling_ngram16_heads",
                   Family::kLing,
                   3,
                   {.drafter = DrafterKind::kNgram,
                    .k = 16,
                    .max_num_batched_tokens = 64,
                    .threads = 2,
                    .cache_form = KvCacheForm::kHeads}},
        HybridCase{"kimi_ngram3_changing",
                   Family::kKimi,
                   1,
                   {.drafter = DrafterKind::kNgram,
                    .k = 3,
                    .draft_ranges = {{1, 1, 3}, {2, 2, 0}, {3, 4, 2}, {5, 64, 1}}}},
        HybridCase{"ling_ngram4_late",
                   Family::kLing,
                   4,
                   {.drafter = DrafterKind::kNgram, .k = 4, .late_seed = 5}},
        HybridCase{"kimi_plain_queued",
                   Family::kKimi,
                   5,
                   {.drafter = DrafterKind::kNone, .max_num_batched_tokens = 50, .queued = true}},
        HybridCase{"ling_ngram3_preempted",
                   Family::kLing,
                   2,
                   {.drafter = DrafterKind::kNgram,
                    .k = 3,
                    .num_blocks = 62,
                    .max_num_batched_tokens = 48,
                    .max_model_len = 400},
                   true},
        HybridCase{"kimi_ngram2_preempted",
                   Family::kKimi,
                   1,
                   {.drafter = DrafterKind::kNgram,
                    .k = 2,
                    .num_blocks = 60,
                    .max_num_batched_tokens = 64,
                    .max_model_len = 400,
                    .cache_form = KvCacheForm::kHeads},
                   true},
        HybridCase{"ling_mtp3", Family::kLing, 6, {.drafter = DrafterKind::kRepeated, .k = 3}},
        HybridCase{"ling_mtp5_float32_padded_small_chunks",
                   Family::kLing,
                   7,
                   {.dtype = DType::kF32,
                    .drafter = DrafterKind::kRepeated,
                    .k = 5,
                    .draft_form = DraftForm::kPadded,
                    .max_num_batched_tokens = 37}},
        HybridCase{"ling_mtp16_heads",
                   Family::kLing,
                   8,
                   {.drafter = DrafterKind::kRepeated,
                    .k = 16,
                    .max_num_batched_tokens = 64,
                    .threads = 2,
                    .cache_form = KvCacheForm::kHeads}},
        HybridCase{"ling_mtp3_changing",
                   Family::kLing,
                   1,
                   {.drafter = DrafterKind::kRepeated,
                    .k = 3,
                    .draft_ranges = {{1, 1, 3}, {2, 2, 0}, {3, 4, 2}, {5, 64, 1}}}},
        HybridCase{"ling_mtp4_late",
                   Family::kLing,
                   4,
                   {.drafter = DrafterKind::kRepeated, .k = 4, .late_seed = 5}},
        HybridCase{"ling_mtp3_preempted",
                   Family::kLing,
                   2,
                   {.drafter = DrafterKind::kRepeated,
                    .k = 3,
                    .num_blocks = 64,
                    .max_num_batched_tokens = 48,
                    .max_model_len = 400},
                   true}),
    [](const auto& hybrid) { return std::string(hybrid.param.name); });

struct StateCase {
  const char* name;
  Family family;
  DrafterKind drafter;
};

class RunningStateTest : public testing::TestWithParam<StateCase> {
 protected:
  /// Drafts are the case's, but for kNone.
  static TestEngineOptions Options(TestEngineOptions options) {
    if (options.drafter != DrafterKind::kNone) options.drafter = GetParam().drafter;
    return OptionsOf(GetParam().family, std::move(options));
  }

  static std::vector<int32_t> Joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  /// A prompt that repeats itself, so that lookups find drafts.
  static std::vector<int32_t> Pattern(size_t seed, size_t count) {
    std::vector<int32_t> tokens;
    const std::vector<int32_t> period = RandomTokens(seed, 7);
    while (tokens.size() < count) tokens.push_back(period[tokens.size() % period.size()]);
    return tokens;
  }
};

// A prompt at once and in chunks of every kind, beside prompts and decodes of others.
TEST_P(RunningStateTest, ChunksAndCompanyChangeNothing) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 4; ++i) requests.push_back(Request(RandomTokens(i, 130 + 70 * i), 20));
  const std::vector<Generated> alone = Alone(Options({}), requests);
  for (const int32_t chunk : {1, 15, 16, 17, 63, 64, 65, 1024}) {
    const auto engine =
        MakeTestEngine(Options({.k = 3, .max_num_batched_tokens = chunk, .prefix_caching = false}));
    ExpectEqual(RunTogether(*engine, requests), alone);
  }
}

// Prompts whose last chunk has one row, which is no decode.
TEST_P(RunningStateTest, ALastChunkOfOneToken) {
  std::vector<GenerationRequest> requests;
  for (const size_t length : {33, 65, 97, 129}) requests.push_back(Request(Pattern(4, length), 20));
  const auto engine = MakeTestEngine(Options({.k = 4, .max_num_batched_tokens = 32}));
  const std::vector<Generated> alone = Alone(Options({}), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectEqual(RunTogether(*engine, {requests[i]}), {alone[i]});
  }
}

// Answers of one token over and over: all drafts are right, and steps end at every place of a
// block.
TEST_P(RunningStateTest, AcceptedDraftsEndAtEveryPlaceOfABlock) {
  for (const int32_t k : {1, 3, 7, 15, 16}) {
    std::vector<GenerationRequest> requests;
    for (size_t length = 14; length <= 34; ++length) {
      GenerationRequest request = Request(RandomTokens(length, length), 40);
      request.sampling.allowed_token_ids = {{50}};
      requests.push_back(std::move(request));
    }
    // Sequences of three tokens: most drafts are wrong.
    for (size_t length = 14; length <= 34; ++length) {
      GenerationRequest request = Request(RandomTokens(length, length), 40, 1.0F);
      request.sampling.seed = length;
      request.sampling.allowed_token_ids = {{50, 51, 52}};
      requests.push_back(std::move(request));
    }
    const auto engine = MakeTestEngine(Options({.k = k, .num_blocks = 2048, .max_num_seqs = 64}));
    const std::vector<Generated> together = RunTogether(*engine, requests);
    ExpectEqual(together, Alone(Options({}), requests));
    int64_t tried = 0;
    for (const Generated& generated : together) {
      for (const std::vector<int32_t>& drafts : generated.drafts) {
        tried += static_cast<int64_t>(drafts.size());
      }
    }
    EXPECT_GT(tried, 21 * 20);
    if (GetParam().drafter != DrafterKind::kNgram) continue;  // whose drafts repeat the answer
    EXPECT_GT(together[0].stats.speculation.num_accepted_tokens, 0);
    EXPECT_EQ(together[0].stats.speculation.num_accepted_tokens,
              together[0].stats.speculation.num_draft_tokens);
    const EngineCounters counters = engine->Counters();
    EXPECT_LT(counters.speculation.num_accepted_tokens, counters.speculation.num_draft_tokens);
  }
}

// A prompt that begins like an earlier one goes on from a state; chunks end inside blocks.
TEST_P(RunningStateTest, APrefixHitGoesOnFromAState) {
  const std::vector<int32_t> shared = Pattern(1, 700);
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 6; ++i) {
    requests.push_back(Request(Joined(shared, RandomTokens(10 + i, 5 + 40 * i)), 24));
  }
  const std::vector<Generated> alone = Alone(Options({}), requests);
  for (const int32_t chunk : {43, 100, 1024}) {
    for (const KvCacheForm form : {KvCacheForm::kLatent, KvCacheForm::kHeads}) {
      const auto engine = MakeTestEngine(Options(
          {.k = 4, .num_blocks = 2048, .max_num_batched_tokens = chunk, .cache_form = form}));
      const CacheConfig cache = TestCacheConfig(Options({.cache_form = form}));
      const std::vector<Generated> expected =
          form == KvCacheForm::kLatent ? alone : Alone(Options({.cache_form = form}), requests);
      for (size_t round = 0; round < 2; ++round) {
        for (size_t i = 0; i < requests.size(); ++i) {
          const Generated result = RunTogether(*engine, {requests[i]}).front();
          ExpectEqual({result}, {expected[i]});
          const auto length = static_cast<int32_t>(requests[i].prompt_token_ids.size());
          const int32_t resume = cache.TokensPerResume();
          if (round > 0) {  // it was there itself
            EXPECT_EQ(result.stats.cached_tokens, (length - 1) / resume * resume);
          } else if (i > 0) {
            EXPECT_GE(result.stats.cached_tokens,
                      700 / cache.TokensPerCheckpoint() * cache.TokensPerCheckpoint());
          }
        }
      }
    }
  }
}

// Requests that begin alike run together, from one state, and end in other ways.
TEST_P(RunningStateTest, ParallelSamplesShareAState) {
  const std::vector<int32_t> prompt = Pattern(3, 400);
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    requests.push_back(Request(prompt, 30, 1.0F));
    requests.back().sampling.seed = i;
  }
  const auto engine = MakeTestEngine(Options({.k = 3, .num_blocks = 1024}));
  const std::vector<Generated> alone = Alone(Options({}), requests);
  ExpectEqual(RunTogether(*engine, {requests[0]}), {alone[0]});
  ExpectEqual(RunTogether(*engine, requests), alone);
}

// Drafts after a hit are those without one.
TEST_P(RunningStateTest, DraftsAfterAHitAreTheSame) {
  const std::vector<GenerationRequest> requests = {Request(Pattern(9, 600), 60)};
  const auto engine = MakeTestEngine(Options({.k = 5}));
  const std::vector<Generated> first = RunTogether(*engine, requests);
  const std::vector<Generated> second = RunTogether(*engine, requests);
  EXPECT_GT(second.front().stats.cached_tokens, 0);
  ExpectEqual(first, second);
  ExpectEqualDrafts(first, second);
}

// Two long prompts in a pool that holds hardly more than one, over and over: states come and go.
TEST_P(RunningStateTest, LongPromptsInAScarcePool) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 3; ++i) requests.push_back(Request(Pattern(20 + i, 900), 40));
  requests.push_back(Request(Joined(Pattern(20, 900), RandomTokens(1, 30)), 40));
  const TestEngineOptions options =
      Options({.k = 3, .num_blocks = 58, .max_num_batched_tokens = 100});
  const std::vector<Generated> alone = Alone(options, requests);
  const auto engine = MakeTestEngine(options);
  for (int round = 0; round < 3; ++round) ExpectEqual(RunTogether(*engine, requests), alone);
  EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
}

// A request that is aborted while its prompt runs leaves no state that was not computed.
TEST_P(RunningStateTest, AnAbortedPromptLeavesNoState) {
  const GenerationRequest request = Request(Pattern(5, 700), 20);
  const std::vector<Generated> alone = Alone(Options({}), {request});
  for (int steps = 0; steps < 12; ++steps) {
    const auto engine = MakeTestEngine(Options({.k = 3, .max_num_batched_tokens = 100}));
    Generated dropped;
    const RequestId id = Submit(*engine, request, &dropped);
    for (int i = 0; i < steps; ++i) engine->Step();
    engine->Abort(id);
    RunUntilIdle(*engine);
    ExpectEqual(RunTogether(*engine, {request}), alone);
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
}

TEST_P(RunningStateTest, TenThousandTokens) {
  if (kSanitized) GTEST_SKIP() << "takes long, and is about numbers";
  const std::vector<GenerationRequest> requests = {Request(Pattern(2, 9500), 500),
                                                   Request(RandomTokens(2, 2500), 300, 1.0F)};
  const TestEngineOptions options =
      Options({.k = 6, .max_num_batched_tokens = 333, .max_model_len = kLongest});
  const auto engine = MakeTestEngine(options);
  ExpectEqual(RunTogether(*engine, requests), Alone(options, requests));
}

INSTANTIATE_TEST_SUITE_P(Families, RunningStateTest,
                         testing::Values(StateCase{"Ling", Family::kLing, DrafterKind::kNgram},
                                         StateCase{"Kimi", Family::kKimi, DrafterKind::kNgram},
                                         StateCase{"LingsModule", Family::kLing,
                                                   DrafterKind::kRepeated}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider
