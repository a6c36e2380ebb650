// Ranks that share a model give what one rank gives, bit for bit; and a rank that ends or hangs
// ends the engine with an error that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <variant>

#include "outrider/parallel/ended_rank.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

std::vector<Generated> Run(const TestEngineOptions& options,
                           const std::vector<GenerationRequest>& requests) {
  const auto engine = MakeTestEngine(options, &BundledTokenizer());
  std::vector<Generated> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(*engine, requests[i], &results[i]);
    engine->Step();
  }
  RunUntilIdle(*engine);
  return results;
}

/// Random requests on several ranks against one.
void ExpectEqualOnRanks(TestEngineOptions options, const std::vector<int32_t>& numbers = {2, 4}) {
  const std::vector<GenerationRequest> requests = RandomRequests(11, 8);
  const std::vector<Generated> expected = Run(options, requests);
  for (const int32_t ranks : numbers) {
    options.ranks = ranks;
    const std::vector<Generated> got = Run(options, requests);
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

TEST(RanksTest, PromptLookup) { ExpectEqualOnRanks({.drafter = DrafterKind::kNgram}); }

TEST(RanksTest, Eagle3) {
  ExpectEqualOnRanks(
      {.drafter_checkpoint = TinyEagle3Directory(), .drafter = DrafterKind::kEagle3});
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

TEST(RanksTest, StepAndSparseAttention) {
  const SmallStepModel step(1600, 20, {.heads = 4, .kv_heads = 2});
  ExpectEqualOnRanks(
      {.checkpoint = step.directory(), .dummy_seed = 7, .cache_form = KvCacheForm::kHeads}, {2});
  const SmallSparseModel sparse(1600);
  ExpectEqualOnRanks({.checkpoint = sparse.directory(),
                      .dummy_seed = 11,
                      .drafter = DrafterKind::kRepeated,
                      .cache_form = KvCacheForm::kHeads},
                     {2});
}

/// Acts in a rank's drafter.
class ActingDrafter : public NgramDrafter {
 public:
  explicit ActingDrafter(std::function<void()> act) : NgramDrafter(3, 2, 5), act_(std::move(act)) {}
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target_hidden,
               MatrixView<int32_t> drafts) override {
    NgramDrafter::Propose(requests, depth, target_hidden, drafts);
    if (++calls_ == 4) act_();
  }

 private:
  std::function<void()> act_;
  int calls_ = 0;
};

/// What a request is told whose rank `rank` does `act`, and in which time.
std::pair<std::string, double> ToldWhenRankActs(int32_t rank, double rank_seconds,
                                                const std::function<void()>& act) {
  TestEngineOptions options = {.drafter = DrafterKind::kNgram, .ranks = 2};
  options.rank_seconds = rank_seconds;
  options.make_executor = [&](std::vector<RankParts> ranks) {
    ranks[static_cast<size_t>(rank)].drafter = std::make_unique<ActingDrafter>(act);
    return std::make_unique<StepRunner>(std::move(ranks), rank_seconds);
  };
  const auto engine = MakeTestEngine(options);
  GenerationRequest request;
  request.prompt_token_ids = {5, 6, 7, 8};
  request.sampling.max_tokens = 50;
  request.sampling.ignore_eos = true;
  std::string told;
  engine->Submit(request, [&](RequestId, OutputDelta&& delta) {
    if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) told = *text;
  });
  const auto start = std::chrono::steady_clock::now();
  try {
    RunUntilIdle(*engine);
  } catch (const Error&) {
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // one that hangs comes back
  EXPECT_THROW(engine->Submit(request, nullptr), Error);
  return {told, seconds.count()};
}

TEST(RanksTest, ARankThatFailsIsNamed) {
  for (const int32_t rank : {0, 1}) {
    const auto [told, seconds] = ToldWhenRankActs(
        rank, 60, [] { throw Error(ErrorCode::kUnavailable, "no memory is left"); });
    EXPECT_EQ(told, EndedRankText({rank, 2}, "no memory is left"));
    EXPECT_LT(seconds, 10);
  }
}

TEST(RanksTest, ARankThatHangsIsNamedWithinTheTimeLimit) {
  const auto [told, seconds] =
      ToldWhenRankActs(1, 0.3, [] { std::this_thread::sleep_for(std::chrono::milliseconds(800)); });
  EXPECT_THAT(told, HasSubstr("rank 1 of 2 has ended: it has not answered for 0.3 s"));
  EXPECT_LT(seconds, 10);
}

}  // namespace
}  // namespace outrider
