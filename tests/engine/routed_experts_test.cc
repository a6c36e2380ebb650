// The experts of tokens: those of a request alone without drafts, whatever runs beside it, drafts
// for it, throws it out or is cached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/engine_loader.h"
#include "tests/engine/expert_runs.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/ops/token_keeping_ops.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using testing::HasSubstr;

std::filesystem::path SparseCheckpoint() {
  static const SmallSparseModel kModel(kBundledVocab);
  return kModel.directory();
}

struct ExpertsCase {
  const char* name;
  uint32_t seed;
  TestEngineOptions options;
  bool preempts = false;
};

class RoutedExpertsTest : public testing::TestWithParam<ExpertsCase> {};

TEST_P(RoutedExpertsTest, TogetherEqualsAlone) {
  const auto& [name, seed, options, preempts] = GetParam();
  ExpectExpertsTogetherAsAlone(name, options, seed, preempts);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, RoutedExpertsTest,
    testing::Values(
        ExpertsCase{"plain_small_chunks",
                    1,
                    {.drafter = DrafterKind::kNone, .block_size = 4, .max_num_batched_tokens = 19}},
        ExpertsCase{"chain3", 2, {.k = 3, .threads = 2}},
        ExpertsCase{"chain3_preempted",
                    2,
                    {.k = 3, .num_blocks = 26, .max_num_batched_tokens = 37, .max_model_len = 400},
                    true},
        ExpertsCase{"chain2_two_ranks", 3, {.k = 2, .ranks = 2}},
        ExpertsCase{"repeated3_heads_int8",
                    3,
                    {.quantization = WeightQuantization::kInt8,
                     .drafter = DrafterKind::kRepeated,
                     .k = 3,
                     .adaptive = true,
                     .cache_form = KvCacheForm::kHeads}},
        ExpertsCase{"ngram3", 1, {.drafter = DrafterKind::kNgram, .k = 3}},
        ExpertsCase{
            "eagle3_preempted",
            2,
            {.drafter = DrafterKind::kEagle3, .k = 3, .num_blocks = 26, .max_model_len = 400},
            true},
        ExpertsCase{
            "fake3", 3, {.drafter = DrafterKind::kFake, .k = 3, .draft_form = DraftForm::kPadded}},
        ExpertsCase{"v4_dspark3_small_chunks",
                    1,
                    {.checkpoint = TinyDSparkDirectory(),
                     .drafter = DrafterKind::kBlock,
                     .k = 3,
                     .num_blocks = 4096,
                     .max_num_batched_tokens = 37,
                     .cache_form = KvCacheForm::kHeads}},
        ExpertsCase{"sparse_repeated3",
                    1,
                    {.checkpoint = SparseCheckpoint(),
                     .dummy_seed = 4,
                     .drafter = DrafterKind::kRepeated,
                     .k = 3,
                     .block_size = 4,
                     .num_blocks = 4096,
                     .max_num_batched_tokens = 37,
                     .cache_form = KvCacheForm::kHeads}}),
    [](const auto& test) { return std::string(test.param.name); });

// As on a device that runs beside the host: tokens stay there, and steps end late.
TEST(RoutedExpertsLateTest, TogetherEqualsAlone) {
  const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
  for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kChain}) {
    TestEngineOptions options = {.ops = &ops, .drafter = drafter, .max_num_batched_tokens = 37};
    options.late_seed = 5;
    ExpectExpertsTogetherAsAlone("late", options, 4, false);
  }
}

class RoutedExpertsScenarioTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine_ = MakeTestEngine({.k = 3, .tells_experts = true});

  static GenerationRequest Asking(GenerationRequest request, int32_t from = 0) {
    request.experts_from = from;
    return request;
  }
};

// The bundled model: a dense layer, then experts.
TEST_F(RoutedExpertsScenarioTest, HaveTheModelsShape) {
  const Generated got =
      RunTogether(*engine_, {Asking(Request(TrainedPrompts().front(), 20))}).front();
  const ModelConfig config = ReadModelConfig(TinyModelDirectory());
  const RoutedExperts& experts = *got.experts;
  EXPECT_EQ(experts.shape.layers, config.num_hidden_layers());
  EXPECT_EQ(experts.tokens, static_cast<int32_t>(TrainedPrompts().front().size()) + 20 - 1);
  const auto top_k = static_cast<size_t>(experts.shape.top_k);
  std::map<size_t, std::set<int16_t>> by_layer;
  for (int32_t token = 0; token < experts.tokens; ++token) {
    const std::vector<int16_t> row = RowOf(experts, token);
    for (size_t layer = 0; layer < config.layers.size(); ++layer) {
      const std::set<int16_t> ids(row.begin() + static_cast<std::ptrdiff_t>(layer * top_k),
                                  row.begin() + static_cast<std::ptrdiff_t>((layer + 1) * top_k));
      by_layer[layer].insert(ids.begin(), ids.end());
      const MoeSpec* const moe = config.layers[layer].moe();
      ASSERT_EQ(ids.size(), moe == nullptr ? 1 : top_k) << "token " << token;
      ASSERT_GE(*ids.begin(), 0);
      ASSERT_LT(*ids.rbegin(), moe == nullptr ? 1 : moe->router.experts);
    }
  }
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    EXPECT_EQ(by_layer[layer].size() > top_k, config.layers[layer].moe() != nullptr) << layer;
  }
}

// Some layers have a table of the experts of each token, the others a router.
TEST_F(RoutedExpertsScenarioTest, V4HasExpertsByTableAndByScore) {
  const std::filesystem::path directory = TinyV4Directory();
  const ModelConfig config = ReadModelConfig(directory);
  const auto engine = MakeTestEngine({.checkpoint = directory,
                                      .drafter = DrafterKind::kNone,
                                      .cache_form = KvCacheForm::kHeads,
                                      .tells_experts = true});
  // One token again and again.
  const Generated got =
      RunTogether(*engine, {Asking(Request(std::vector<int32_t>(12, 7), 1))}).front();
  const RoutedExperts& experts = *got.experts;
  ASSERT_EQ(experts.tokens, 12);
  const auto top_k = static_cast<std::ptrdiff_t>(experts.shape.top_k);
  std::set<bool> kinds;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    std::set<std::vector<int16_t>> seen;
    for (int32_t token = 0; token < 12; ++token) {
      const std::vector<int16_t> row = RowOf(experts, token);
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(layer) * top_k;
      seen.emplace(begin, begin + top_k);
      EXPECT_EQ(std::set<int16_t>(begin, begin + top_k).size(), static_cast<size_t>(top_k));
    }
    const bool by_table = config.layers[layer].moe()->router.method == RouterMethod::kTokenTable;
    kinds.insert(by_table);
    if (by_table) {
      EXPECT_EQ(seen.size(), 1) << layer;
    }
  }
  EXPECT_EQ(kinds.size(), 2);
}

// What is before `experts_from` may be cached; what is asked for is computed.
TEST_F(RoutedExpertsScenarioTest, CachedTokensAreThoseThatNobodyAsksFor) {
  const std::vector<int32_t> prompt = RandomTokens(5, 100);
  const Generated first = RunTogether(*engine_, {Asking(Request(prompt))}).front();
  const Generated all = RunTogether(*engine_, {Asking(Request(prompt))}).front();
  EXPECT_EQ(all.stats.cached_tokens, 0);
  EXPECT_EQ(ExpertDifference(all, first), "");
  const Generated some = RunTogether(*engine_, {Asking(Request(prompt), 70)}).front();
  EXPECT_EQ(some.stats.cached_tokens, 64);
  EXPECT_EQ(some.experts->tokens, 100 + 24 - 1 - 70);
  EXPECT_EQ(ExpertDifference(some, first), "");
  EXPECT_EQ(RunTogether(*engine_, {Request(prompt)}).front().stats.cached_tokens, 96);
}

// A trainer's second look: what was generated, given as an answer.
TEST_F(RoutedExpertsScenarioTest, AnAnswerThatIsGivenHasThoseOfItsGeneration) {
  const GenerationRequest request = Asking(Request(TrainedPrompts().front(), 30, 1.0F));
  const Generated drawn = RunOne(*engine_, request);
  GenerationRequest given = request;
  given.sampling.temperature = 0;
  given.grammar.forced_tokens = drawn.tokens;
  EXPECT_EQ(ExpertDifference(RunTogether(*engine_, {given}).front(), drawn), "");
}

// Drafts behind the end of a request were right, too, and are none of its tokens.
TEST_F(RoutedExpertsScenarioTest, EndWithTheLastTokenButOne) {
  for (int32_t length = 1; length <= 9; ++length) {
    const GenerationRequest request = Asking(Request(TrainedPrompts().front(), length));
    const Generated got = RunOne(*engine_, request);
    EXPECT_EQ(got.tokens.size(), static_cast<size_t>(length));
    EXPECT_EQ(got.experts->tokens,
              static_cast<int32_t>(request.prompt_token_ids.size()) + length - 1);
  }
  GenerationRequest stops = Asking(Request(TrainedPrompts().front(), 40));
  stops.sampling.stop_token_ids = {
      RunTogether(*engine_, {Request(TrainedPrompts().front(), 6)}).front().tokens.back()};
  const Generated got = RunTogether(*engine_, {stops}).front();
  EXPECT_EQ(got.finish_reason, FinishReason::kStop);
  EXPECT_EQ(got.experts->tokens,
            static_cast<int32_t>(stops.prompt_token_ids.size() + got.tokens.size()) - 1);
}

TEST_F(RoutedExpertsScenarioTest, AnAbortedRequestTellsWhatItHas) {
  Generated waiting;
  const RequestId early = Submit(*engine_, Asking(Request({5, 6, 7})), &waiting);
  engine_->Abort(early);
  engine_->Step();
  ASSERT_NE(waiting.experts, nullptr);
  EXPECT_EQ(waiting.experts->tokens, 0);
  Generated got;
  const RequestId id = Submit(*engine_, Asking(Request({5, 6, 7}, 100)), &got);
  for (int step = 0; step < 4; ++step) engine_->Step();
  engine_->Abort(id);
  engine_->Step();
  EXPECT_EQ(got.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(got.experts->tokens, static_cast<int32_t>(3 + got.tokens.size()) - 1);
}

TEST_F(RoutedExpertsScenarioTest, RefusesWhatItCannotTell) {
  for (const int32_t from : {3, -1}) {
    EXPECT_THAT(RefusalOf(*engine_, Asking(Request({5, 6}), from)),
                HasSubstr(fmt::format("from token {} on (routed_experts_prompt_start): it must be "
                                      "0 to 2",
                                      from)));
  }
  EXPECT_EQ(RefusalOf(*engine_, Asking(Request({5, 6}), 2)), "");
  const auto silent = MakeTestEngine({.drafter = DrafterKind::kNone});
  EXPECT_THAT(RefusalOf(*silent, Asking(Request({5, 6}))),
              HasSubstr("--enable-return-routed-experts"));
}

EngineOptions OptionsThatTell(const std::filesystem::path& model) {
  EngineOptions options;
  options.model = model.string();
  options.device = DeviceKind::kCpu;
  options.num_threads = 1;
  options.kv_cache_memory_bytes = int64_t{16} << 20;
  options.max_model_len = 256;
  options.enable_return_routed_experts = true;
  return options;
}

TEST(RoutedExpertsOptionTest, AnEngineTellsThemWhereItIsAskedTo) {
  EngineOptions options = OptionsThatTell(SourceDirectory() / "models/tiny-v3-mtp3");
  const LoadedEngine loaded = LoadEngine(options, nullptr);
  GenerationRequest request = Request(TrainedPrompts().front(), 8);
  request.experts_from = 0;
  const Generated got = RunOne(*loaded.engine, request);
  EXPECT_EQ(ExpertDifference(got, AllExpertsOf({}, {request}).front()), "");
  const auto is_told = [](const Decision& decision) {
    return decision.what == "experts of tokens";
  };
  EXPECT_TRUE(std::ranges::any_of(loaded.decisions, is_told));
  options.enable_return_routed_experts = false;
  EXPECT_FALSE(std::ranges::any_of(ExplainEngine(options).decisions, is_told));
}

TEST(RoutedExpertsOptionTest, AModelWithoutExpertsIsRefused) {
  nlohmann::json config = ReadJson(TinyModelDirectory() / "config.json");
  config["first_k_dense_replace"] = config["num_hidden_layers"];
  config["num_nextn_predict_layers"] = 0;
  const ModelDirectory model(config);
  EngineOptions options = OptionsThatTell(model.directory());
  options.load_format = LoadFormat::kDummy;
  try {
    ExplainEngine(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--enable-return-routed-experts: no layer of"));
  }
}

}  // namespace
}  // namespace outrider
