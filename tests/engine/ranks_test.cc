// Ranks that share a model give what one rank gives, bit for bit; and a rank that ends or hangs
// ends the engine with an error that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <new>
#include <thread>

#include "outrider/parallel/ended_rank.h"
#include "tests/engine/acting_rank.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/networks/small_v4_model.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

/// Random requests on several ranks against one.
void ExpectEqualOnRanks(TestEngineOptions options, const std::vector<int32_t>& numbers = {2, 4},
                        bool divides_requests = false) {
  const std::vector<GenerationRequest> requests = RandomRequests(11, 8);
  const std::vector<Generated> expected = AnswersOf(options, requests, &BundledTokenizer());
  options.divides_requests = divides_requests;
  for (const int32_t ranks : numbers) {
    options.ranks = ranks;
    const std::vector<Generated> got = AnswersOf(options, requests, &BundledTokenizer());
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Difference(got[i], expected[i]), "") << ranks << " ranks, request " << i;
      EXPECT_GT(expected[i].tokens.size(), 0U);
    }
  }
}

TEST(RanksTest, LatentCacheWithAChainOfModules) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) ExpectEqualOnRanks({.dtype = dtype});
}

TEST(RanksTest, PerHeadCacheWithAChainOfModules) {
  ExpectEqualOnRanks({.cache_form = KvCacheForm::kHeads});
}

TEST(RanksTest, DraftsThatAreDrawnAndAnAdaptiveNumber) {
  ExpectEqualOnRanks({.adaptive = true, .probabilistic_drafts = true});
}

TEST(RanksTest, Int8Weights) { ExpectEqualOnRanks({.quantization = WeightQuantization::kInt8}); }

TEST(RanksTest, Int4Experts) {
  const Int4TinyModel model;
  ExpectEqualOnRanks({.checkpoint = model.directory()});
}

TEST(RanksTest, PreemptionAndPrefixHits) {
  for (const bool divides_requests : {false, true}) {
    TestEngineOptions options = {.block_size = 4, .num_blocks = 60, .max_model_len = 200};
    const std::vector<std::vector<int32_t>> prompts = TrainedPrompts();
    std::vector<GenerationRequest> requests;
    for (int32_t i = 0; i < 16; ++i) {
      requests.push_back(Request(prompts[static_cast<size_t>(i)], 40 + i));
    }
    const std::vector<Generated> expected = RunTogether(*MakeTestEngine(options), requests);
    options.ranks = 2;
    options.divides_requests = divides_requests;
    const auto engine = MakeTestEngine(options);
    for (int round = 0; round < 2; ++round) ExpectEqual(RunTogether(*engine, requests), expected);
    // Alone, its pages are not taken before it comes again.
    for (int round = 0; round < 2; ++round) {
      ExpectEqual(RunTogether(*engine, {requests[0]}), {expected[0]});
    }
    const EngineCounters counters = engine->Counters();
    EXPECT_GT(counters.num_preemptions, 0);
    EXPECT_GT(counters.prefix_cache_hits, 0);
    EXPECT_EQ(counters.kv_cache_usage, 0);
  }
}

TEST(RanksTest, PromptLookup) { ExpectEqualOnRanks({.drafter = DrafterKind::kNgram}); }

TEST(RanksTest, Eagle3) {
  ExpectEqualOnRanks(
      {.drafter_checkpoint = TinyEagle3Directory(), .drafter = DrafterKind::kEagle3});
  // Its keys come in two heads.
  ExpectEqualOnRanks(
      {.drafter_checkpoint = TinyLlamaEagle3Directory(), .drafter = DrafterKind::kEagle3}, {2});
}

TEST(RanksTest, DeepSeekV4WithItsModuleAndWithDSpark) {
  // Their heads come in two groups.
  ExpectEqualOnRanks({.checkpoint = TinyV4Directory(),
                      .drafter = DrafterKind::kRepeated,
                      .cache_form = KvCacheForm::kHeads},
                     {2});
  ExpectEqualOnRanks({.checkpoint = TinyDSparkDirectory(),
                      .drafter = DrafterKind::kBlock,
                      .cache_form = KvCacheForm::kHeads},
                     {2});
}

// Every family on as many ranks as there may be, which have a head each.

const std::vector<int32_t> kAllNumbers = {2, 4, 8};

TEST(RanksTest, SmallLatentAttentionOnUpToEight) {
  const SmallModel model(2, 1600, /*heads=*/8);
  ExpectEqualOnRanks({.checkpoint = model.directory(), .dummy_seed = 5}, kAllNumbers);
}

TEST(RanksTest, SmallDeepSeekV4OnUpToEight) {
  for (const bool dspark : {false, true}) {
    const SmallV4Model model(1600, dspark, /*heads=*/8);
    ExpectEqualOnRanks({.checkpoint = model.directory(),
                        .dummy_seed = 9,
                        .drafter = dspark ? DrafterKind::kBlock : DrafterKind::kRepeated,
                        .cache_form = KvCacheForm::kHeads},
                       kAllNumbers);
  }
}

TEST(RanksTest, StepAndSparseAttentionOnUpToEight) {
  const SmallStepModel step(1600, 20, {.heads = 8, .kv_heads = 8});
  ExpectEqualOnRanks(
      {.checkpoint = step.directory(), .dummy_seed = 7, .cache_form = KvCacheForm::kHeads},
      kAllNumbers);
  const SmallSparseModel sparse(1600, {.heads = 8});
  ExpectEqualOnRanks({.checkpoint = sparse.directory(),
                      .dummy_seed = 11,
                      .drafter = DrafterKind::kRepeated,
                      .cache_form = KvCacheForm::kHeads},
                     kAllNumbers);
}

TEST(RanksTest, LinearAttentionOnUpToEight) {
  // Every rank has the states of its heads.
  const ModelDirectory ling(WithHeads(SmallLingConfig(1600), 8));
  for (const KvCacheForm form : {KvCacheForm::kLatent, KvCacheForm::kHeads}) {
    ExpectEqualOnRanks({.checkpoint = ling.directory(),
                        .dummy_seed = 13,
                        .drafter = DrafterKind::kRepeated,
                        .adaptive = true,
                        .cache_form = form},
                       kAllNumbers);
  }
  const ModelDirectory kimi(WithHeads(SmallKimiConfig(1600), 8));
  ExpectEqualOnRanks(
      {.checkpoint = kimi.directory(), .dummy_seed = 15, .drafter = DrafterKind::kNgram},
      kAllNumbers);
}

// Attention data-parallel by request: every rank has the cache of its own requests.

/// Three ranks could not share the heads.
void ExpectEqualWithRequestsDivided(const TestEngineOptions& options,
                                    const std::vector<int32_t>& numbers = {3}) {
  ExpectEqualOnRanks(options, numbers, /*divides_requests=*/true);
}

TEST(DividedRequestsTest, LatentCacheWithAChainOfModules) {
  ExpectEqualWithRequestsDivided({.dtype = DType::kBF16}, {2, 8});
  ExpectEqualWithRequestsDivided({.dtype = DType::kF32});
}

TEST(DividedRequestsTest, PerHeadCacheAndInt8Weights) {
  ExpectEqualWithRequestsDivided(
      {.quantization = WeightQuantization::kInt8, .cache_form = KvCacheForm::kHeads});
}

TEST(DividedRequestsTest, DraftsThatAreDrawnAndAnAdaptiveNumber) {
  // Modules fall behind, and catch up by rows that one rank has kept.
  ExpectEqualWithRequestsDivided({.adaptive = true, .probabilistic_drafts = true});
  ExpectEqualWithRequestsDivided({.drafter = DrafterKind::kRepeated, .adaptive = true});
}

/// What was drafted, by request and the number of its tokens before.
using Drafts = std::map<std::pair<size_t, size_t>, std::vector<int32_t>>;

/// Of requests that come together and end one after the other.
Drafts DraftsOf(const TestEngineOptions& options) {
  const auto engine = MakeTestEngine(options);
  Drafts drafts;
  std::vector<size_t> tokens(6, 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    GenerationRequest request;
    for (int32_t t = 0; t < 30; ++t) {
      request.prompt_token_ids.push_back(7 + t % (3 + static_cast<int32_t>(i)));
    }
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 10 + 9 * static_cast<int32_t>(i);
    request.sampling.ignore_eos = true;
    request.trace_steps = true;
    engine->Submit(request, [&, i](RequestId, OutputDelta&& delta) {
      for (StepTrace& step : delta.steps) {
        if (!step.drafts.empty()) drafts[{i, tokens[i]}] = std::move(step.drafts);
        tokens[i] += static_cast<size_t>(step.num_tokens);
      }
    });
  }
  RunUntilIdle(*engine);
  return drafts;
}

// Exactness would not tell wrong drafts, which are refused.
TEST(DividedRequestsTest, DraftsAreThoseOfOneRank) {
  // Modules stop while there are many requests, and catch up by rows that one rank has kept.
  for (const DrafterKind kind : {DrafterKind::kChain, DrafterKind::kRepeated}) {
    TestEngineOptions options = {.drafter = kind, .draft_ranges = {{1, 3, 3}, {4, 32, 0}}};
    const Drafts expected = DraftsOf(options);
    EXPECT_GT(expected.size(), 10U);
    options.divides_requests = true;
    for (const int32_t ranks : {2, 3}) {
      options.ranks = ranks;
      EXPECT_EQ(DraftsOf(options), expected) << ranks << " ranks";
    }
  }
}

TEST(DividedRequestsTest, NRanksRunNTimesTheRequestsAtOnce) {
  for (const int32_t ranks : {1, 2, 4}) {
    // A request takes 21 pages and some for drafts, so that three fit.
    const auto engine = MakeTestEngine({.num_blocks = 72,
                                        .max_num_batched_tokens = 4096,
                                        .ranks = ranks,
                                        .divides_requests = ranks > 1});
    std::vector<Generated> results(13);
    for (size_t i = 0; i < results.size(); ++i) {
      GenerationRequest request;
      request.prompt_token_ids.assign(320, 9 + static_cast<int32_t>(i));
      request.sampling.max_tokens = 12;
      request.sampling.ignore_eos = true;
      Submit(*engine, request, &results[i]);
    }
    engine->Step();
    EXPECT_EQ(engine->Counters().num_requests_running, 3 * ranks);
    RunUntilIdle(*engine);
    for (const Generated& result : results) EXPECT_EQ(result.tokens.size(), 12U);
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
}

TEST(DividedRequestsTest, PagesThatAreShort) {
  // Requests are preempted, pages leave the cache and come back.
  ExpectEqualWithRequestsDivided(
      {.adaptive = true, .num_blocks = 72, .max_num_batched_tokens = 64, .host_pages = 40});
}

TEST(DividedRequestsTest, PromptLookupAndEagle3) {
  ExpectEqualWithRequestsDivided({.drafter = DrafterKind::kNgram});
  ExpectEqualWithRequestsDivided(
      {.drafter_checkpoint = TinyEagle3Directory(), .drafter = DrafterKind::kEagle3});
}

TEST(DividedRequestsTest, DeepSeekV4WithItsModuleAndWithDSpark) {
  ExpectEqualWithRequestsDivided({.checkpoint = TinyV4Directory(),
                                  .drafter = DrafterKind::kRepeated,
                                  .cache_form = KvCacheForm::kHeads});
  ExpectEqualWithRequestsDivided({.checkpoint = TinyDSparkDirectory(),
                                  .rounded_cache = true,
                                  .drafter = DrafterKind::kBlock,
                                  .cache_form = KvCacheForm::kHeads});
}

TEST(DividedRequestsTest, StepAndSparseAttention) {
  const SmallStepModel step(1600, 20, {.heads = 4, .kv_heads = 2});
  ExpectEqualWithRequestsDivided(
      {.checkpoint = step.directory(), .dummy_seed = 7, .cache_form = KvCacheForm::kHeads});
  const SmallSparseModel sparse(1600);
  ExpectEqualWithRequestsDivided({.checkpoint = sparse.directory(),
                                  .dummy_seed = 11,
                                  .drafter = DrafterKind::kRepeated,
                                  .cache_form = KvCacheForm::kHeads});
}

TEST(DividedRequestsTest, LinearAttention) {
  // Every rank has the whole states of its requests; drafts must not write them.
  const ModelDirectory ling(SmallLingConfig(1600));
  ExpectEqualWithRequestsDivided(
      {.checkpoint = ling.directory(), .dummy_seed = 13, .drafter = DrafterKind::kRepeated},
      {3, 8});
  const ModelDirectory kimi(SmallKimiConfig(1600));
  ExpectEqualWithRequestsDivided({.checkpoint = kimi.directory(),
                                  .dummy_seed = 15,
                                  .drafter = DrafterKind::kNgram,
                                  .num_blocks = 140,
                                  .max_num_batched_tokens = 64,
                                  .host_pages = 40});
}

GenerationRequest ShortRequest() {
  GenerationRequest request;
  request.prompt_token_ids = {5, 6, 7, 8};
  request.sampling.max_tokens = 50;
  request.sampling.ignore_eos = true;
  return request;
}

/// What a request is told one of whose ranks does `act`, and in which time.
std::pair<std::string, double> ToldWhenRankActs(const RankPlace& place, double rank_seconds,
                                                const std::function<void()>& act) {
  return ToldWhenRankActs({.ranks = place.ranks}, place.rank, rank_seconds, act, ShortRequest());
}

TEST(RanksTest, ARankThatFailsIsNamed) {
  for (const RankPlace place : {RankPlace{0, 2}, {1, 2}, {2, 4}, {7, 8}}) {
    const auto [told, seconds] = ToldWhenRankActs(
        place, 60, [] { throw Error(ErrorCode::kUnavailable, "a device is lost"); });
    EXPECT_EQ(told, EndedRankText(place, "a device is lost"));
    EXPECT_LT(seconds, 10);
  }
}

TEST(RanksTest, ARankThatRunsOutOfMemoryIsNamed) {
  for (const RankPlace place : {RankPlace{0, 2}, {1, 2}}) {
    const auto [told, seconds] = ToldWhenRankActs(place, 60, [] { throw std::bad_alloc(); });
    EXPECT_EQ(told, EndedRankText(place, "no memory is left"));
    EXPECT_LT(seconds, 10);
  }
}

TEST(RanksTest, ARankThatHangsIsNamedWithinTheTimeLimit) {
  for (const RankPlace place : {RankPlace{1, 2}, {3, 4}}) {
    const auto [told, seconds] = ToldWhenRankActs(
        place, 0.3, [] { std::this_thread::sleep_for(std::chrono::milliseconds(800)); });
    EXPECT_THAT(told, HasSubstr(EndedRankText(place, "it has not answered for 0.3 s")));
    EXPECT_LT(seconds, 10);
  }
}

TEST(RanksTest, ARankThatHangsIsNamedWhereRequestsAreDivided) {
  const auto [told, seconds] = ToldWhenRankActs(
      {.ranks = 2, .divides_requests = true}, 1, 0.3,
      [] { std::this_thread::sleep_for(std::chrono::milliseconds(800)); }, ShortRequest());
  EXPECT_THAT(told, HasSubstr(EndedRankText({1, 2}, "it has not answered for 0.3 s")));
  EXPECT_LT(seconds, 10);
}

TEST(RanksTest, ARankThatWorksLongerThanTheTimeLimitIsWaitedFor) {
  TestEngineOptions options{.ranks = 2, .divides_requests = true};
  options.drafter = DrafterKind::kNgram;
  options.rank_seconds = 0.5;
  options.make_executor = [&](std::vector<RankParts> ranks) {
    ranks[1].drafter = std::make_unique<ActingDrafter>([pool = ranks[1].pool.get()] {
      pool->ParallelFor(
          30, [](int64_t, int) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    });
    return std::make_unique<StepRunner>(std::move(ranks), options.rank_seconds);
  };
  const auto engine = MakeTestEngine(options);
  EXPECT_EQ(RunOne(*engine, ShortRequest()).tokens.size(), 50U);
}

}  // namespace
}  // namespace outrider
