// Ranks on GPUs that share a model give what one GPU gives, bit for bit. All of them run on device
// 0 here, so that one GPU is enough; those that there are take part in one test, and in
// ranks_on_gpus_test.cc. Needs a GPU of compute capability 9.0, and cuDNN.
#include "tests/engine/cuda/gpu_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "outrider/parallel/ended_rank.h"
#include "tests/engine/acting_rank.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/networks/int4_tiny_model.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;

class GpuRanksTest : public RanksOnGpus<HopperTest<>> {
  int gpus() const override { return 1; }
};

TEST_F(GpuRanksTest, LatentAttentionWithoutDrafts) {
  ExpectEqualOnRanks({.drafter = DrafterKind::kNone}, kBundledVocab);
}

TEST_F(GpuRanksTest, AChainOfModulesAndOneThatIsRepeated) {
  ExpectEqualOnRanks({.drafter = DrafterKind::kChain}, kBundledVocab);
  ExpectEqualOnRanks({.drafter = DrafterKind::kRepeated, .draft_form = DraftForm::kPadded},
                     kBundledVocab, {2});
}

TEST_F(GpuRanksTest, DraftsThatAreDrawnOverACacheOfEightBits) {
  ExpectEqualOnRanks({.rounded_cache = true, .adaptive = true, .probabilistic_drafts = true},
                     kBundledVocab);
}

TEST_F(GpuRanksTest, Int4Experts) {
  const Int4TinyModel model;
  ExpectEqualOnRanks({.checkpoint = model.directory()}, kBundledVocab, {2});
}

TEST_F(GpuRanksTest, PromptLookupAndEagle3) {
  ExpectEqualOnRanks({.drafter = DrafterKind::kNgram}, kBundledVocab, {2});
  ExpectEqualOnRanks({.drafter_checkpoint = TinyEagle3Directory(), .drafter = DrafterKind::kEagle3},
                     kBundledVocab, {2});
  ExpectEqualOnRanks(
      {.drafter_checkpoint = TinyLlamaEagle3Directory(), .drafter = DrafterKind::kEagle3},
      kBundledVocab, {2});
}

/// Products run beside what they gather.
TEST_F(GpuRanksTest, RowsOfPromptsTravelInChunks) {
  ExpectEqualOnRanks({.drafter = DrafterKind::kChain, .make_communicators = InSmallChunks},
                     kBundledVocab);
  ExpectEqualOnRanks({.rounded_cache = true, .make_communicators = InSmallChunks}, kBundledVocab,
                     {2}, /*divides_requests=*/true);
  // Groups of heads, streams, and shared MLPs that are none of the experts.
  ExpectEqualOnRanks({.checkpoint = TinyV4Directory(),
                      .drafter = DrafterKind::kRepeated,
                      .cache_form = KvCacheForm::kHeads,
                      .make_communicators = InSmallChunks},
                     VocabOf(TinyV4Directory()), {2});
  const SmallStepModel step(kBundledVocab, 20, kGpuStepSizes);
  ExpectEqualOnRanks({.checkpoint = step.directory(),
                      .dummy_seed = 7,
                      .cache_form = KvCacheForm::kHeads,
                      .make_communicators = InSmallChunks},
                     kBundledVocab, {2});
}

/// Attention of as many heads is split at other places than that of half as many, and so is K of a
/// weight of as many rows.
TEST_F(GpuRanksTest, SplitsAndSegmentsAreThoseOfTheWhole) {
  nlohmann::json config = ReadJson(TinyModelDirectory() / "config.json");
  config["num_attention_heads"] = config["num_key_value_heads"] = 64;
  config["hidden_size"] = 2048;
  config.erase("quantization_config");
  const ModelDirectory model(config);
  ExpectEqualOnRanks({.checkpoint = model.directory(),
                      .dummy_seed = 3,
                      .drafter = DrafterKind::kRepeated,
                      .max_model_len = 1800},
                     kBundledVocab);
}

TEST_F(GpuRanksTest, GroupedQueryAttention) {
  const SmallStepModel step(kBundledVocab, 20, kGpuStepSizes);
  for (const bool rounded : {false, true}) {
    ExpectEqualOnRanks({.checkpoint = step.directory(),
                        .dummy_seed = 7,
                        .rounded_cache = rounded,
                        .cache_form = KvCacheForm::kHeads},
                       kBundledVocab, {2});
  }
}

TEST_F(GpuRanksTest, AttentionToChosenTokens) {
  const SmallSparseModel sparse(kBundledVocab, kGpuV32Sizes);
  ExpectEqualOnRanks({.checkpoint = sparse.directory(),
                      .dummy_seed = 11,
                      .drafter = DrafterKind::kRepeated,
                      .cache_form = KvCacheForm::kHeads},
                     kBundledVocab);
}

TEST_F(GpuRanksTest, LinearAttention) {
  // Pages have to hold pieces of states.
  const ModelDirectory ling(WithGpuHeads(SmallLingConfig(kBundledVocab)));
  ExpectEqualOnRanks({.checkpoint = ling.directory(),
                      .dummy_seed = 13,
                      .drafter = DrafterKind::kRepeated,
                      .block_size = 256},
                     kBundledVocab);
  const ModelDirectory kimi(WithGpuHeads(SmallKimiConfig(kBundledVocab)));
  ExpectEqualOnRanks({.checkpoint = kimi.directory(),
                      .dummy_seed = 15,
                      .drafter = DrafterKind::kNgram,
                      .block_size = 256},
                     kBundledVocab);
}

TEST_F(GpuRanksTest, DeepSeekV4WithItsModuleAndWithDSpark) {
  // Their heads come in two groups.
  const int32_t vocab = VocabOf(TinyV4Directory());
  const TestEngineOptions module = {.checkpoint = TinyV4Directory(),
                                    .drafter = DrafterKind::kRepeated,
                                    .cache_form = KvCacheForm::kHeads};
  ExpectEqualOnRanks(module, vocab, {2});
  for (const bool drawn : {false, true}) {
    ExpectEqualOnRanks({.checkpoint = TinyDSparkDirectory(),
                        .drafter = DrafterKind::kBlock,
                        .k = 5,
                        .adaptive = drawn,
                        .cache_form = KvCacheForm::kHeads,
                        .probabilistic_drafts = drawn},
                       vocab, {2});
  }
  nlohmann::json config = ReadJson(TinyV4Directory() / "config.json");
  config["o_groups"] = 4;
  config.erase("quantization_config");
  config.erase("expert_dtype");
  const ModelDirectory model(config);
  TestEngineOptions four = module;
  four.checkpoint = model.directory();
  four.dummy_seed = 5;
  ExpectEqualOnRanks(four, vocab, {4});
}

TEST_F(GpuRanksTest, RequestsAreDividedAmongRanks) {
  const auto expect_equal = [this](const TestEngineOptions& options,
                                   const std::vector<int32_t>& numbers = {2}) {
    ExpectEqualOnRanks(options, VocabOf(options.checkpoint), numbers, /*divides_requests=*/true);
  };
  expect_equal({.drafter = DrafterKind::kChain}, {2, 4});
  expect_equal({.rounded_cache = true, .adaptive = true, .probabilistic_drafts = true});
  expect_equal({.drafter = DrafterKind::kRepeated, .adaptive = true});
  expect_equal({.drafter_checkpoint = TinyEagle3Directory(), .drafter = DrafterKind::kEagle3});
  const SmallStepModel step(kBundledVocab, 20, kGpuStepSizes);
  expect_equal(
      {.checkpoint = step.directory(), .dummy_seed = 7, .cache_form = KvCacheForm::kHeads});
  const SmallSparseModel sparse(kBundledVocab, kGpuV32Sizes);
  expect_equal({.checkpoint = sparse.directory(),
                .dummy_seed = 11,
                .drafter = DrafterKind::kRepeated,
                .cache_form = KvCacheForm::kHeads});
  const ModelDirectory ling(WithGpuHeads(SmallLingConfig(kBundledVocab)));
  expect_equal({.checkpoint = ling.directory(),
                .dummy_seed = 13,
                .drafter = DrafterKind::kRepeated,
                .block_size = 256});
  // Four ranks could not share its heads.
  expect_equal({.checkpoint = TinyV4Directory(),
                .drafter = DrafterKind::kRepeated,
                .cache_form = KvCacheForm::kHeads},
               {4});
  expect_equal({.checkpoint = TinyDSparkDirectory(),
                .drafter = DrafterKind::kBlock,
                .cache_form = KvCacheForm::kHeads});
}

/// As `outrider` starts it, with the parts of all ranks in its table.
TEST_F(GpuRanksTest, AnEngineLoadsAndAnswersOnRanks) {
  const auto answer = [](int32_t ranks, LoadedEngine* loaded, bool divides_requests = false) {
    EngineOptions options = SmallEngineOptions(8);
    options.tensor_parallel_size = ranks;
    options.data_parallel_attention = divides_requests;
    if (ranks > 1) options.rank_devices.assign(static_cast<size_t>(ranks), 0);
    *loaded = LoadEngine(options, [](int64_t done, int64_t total) { EXPECT_LE(done, total); });
    Generated result;
    Submit(*loaded->engine, LongRequest(5, 300, kBundledVocab), &result);
    RunUntilIdle(*loaded->engine);
    return result;
  };
  LoadedEngine alone;
  const Generated expected = answer(1, &alone);
  EXPECT_TRUE(alone.memory.ranks.empty());
  for (const int32_t ranks : {2, 4}) {
    LoadedEngine loaded;
    EXPECT_EQ(Difference(answer(ranks, &loaded), expected), "") << ranks;
    ASSERT_EQ(loaded.memory.ranks.size(), static_cast<size_t>(ranks));
    EXPECT_LT(loaded.memory.ranks[1].weights,
              SumOf(alone.memory.weights) + SumOf(alone.memory.mtp_weights));
  }
  LoadedEngine divided;
  EXPECT_EQ(Difference(answer(2, &divided, /*divides_requests=*/true), expected), "");
}

TEST_F(GpuRanksTest, RanksOnTheGpusThatThereAre) {
  const int count = NumGpus();
  EngineOptions options = SmallEngineOptions(8);
  // Eight would have parts of the bundled model's MLP that FP8 blocks do not allow.
  options.tensor_parallel_size = count >= 4 ? 4 : count >= 2 ? 2 : 1;
  options.kv_cache_memory_bytes.reset();
  options.gpu_memory_utilization = 0.3;
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  const LoadedEngine alone = LoadEngine(SmallEngineOptions(8), [](int64_t, int64_t) {});
  const GenerationRequest request = LongRequest(5, 300, kBundledVocab);
  const Generated expected = RunOne(*alone.engine, request);
  EXPECT_EQ(Difference(RunOne(*loaded.engine, request), expected), "") << count << " GPUs";
}

// Of 640 inner columns eight ranks would have parts that begin within a block of 128.
TEST_F(GpuRanksTest, PartsThatCutBlocksAreRefusedByName) {
  EngineOptions options = SmallEngineOptions(8);
  options.tensor_parallel_size = 8;
  options.rank_devices.assign(8, 0);
  options.num_threads = 8;
  try {
    ExplainEngine(options);
    FAIL() << "it is taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("_proj.weight has too few rows for 8 ranks: "));
    EXPECT_THAT(error.what(), HasSubstr(" can share it"));
  }
}

TEST_F(GpuRanksTest, FewerGpusThanRanksAreRefusedByNumber) {
  const int count = NumGpus();
  if (count >= 8) GTEST_SKIP() << "8 ranks have GPUs";
  EngineOptions options = SmallEngineOptions();
  options.tensor_parallel_size = 8;
  try {
    LoadEngine(options, [](int64_t, int64_t) {});
    FAIL() << "it starts";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--tensor-parallel-size is 8, but "));
    EXPECT_THAT(error.what(), HasSubstr(count == 1 ? "1 GPU can be used" : "GPUs can be used"));
  }
}

TEST_F(GpuRanksTest, ARankThatFailsOrHangsIsNamedInTime) {
  struct Case {
    std::function<void()> act;
    double rank_seconds;
    std::string told;
  };
  const std::vector<Case> cases = {
      {[] { throw Error(ErrorCode::kUnavailable, "no memory is left"); }, 60, "no memory is left"},
      {[] { std::this_thread::sleep_for(std::chrono::milliseconds(800)); }, 0.3,
       "it has not answered for 0.3 s"}};
  for (const Case& c : cases) {
    TestEngineOptions options = OnRanks(OnGpu({}), 2);
    options.queued = false;
    GenerationRequest request = LongRequest(3, 20, kBundledVocab);
    request.sampling.max_tokens = 50;
    const auto [told, seconds] = ToldWhenRankActs(options, 1, c.rank_seconds, c.act, request);
    EXPECT_EQ(told, EndedRankText({1, 2}, c.told));
    EXPECT_LT(seconds, 10);
  }
}

}  // namespace
}  // namespace outrider::cuda
