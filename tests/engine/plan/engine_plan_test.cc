// The whole plan: what each part decides reaches the others.
#include "outrider/engine/plan/engine_plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider {
namespace {

using testing::HasSubstr;

EnginePlan PlanOf(const EngineOptions& options, const ModelFacts& model,
                  const DeviceFacts& device) {
  Decisions decisions;
  return PlanEngine(options, model, device, decisions);
}

std::string RefusalOf(const EngineOptions& options, const ModelFacts& model,
                      const DeviceFacts& device) {
  return RefusalBy([&] { PlanOf(options, model, device); });
}

TEST(EnginePlan, DeviceOfTheFactsDecides) {
  const EnginePlan cpu = PlanOf({}, TinyV3(), Processor());
  EXPECT_EQ(cpu.device, DeviceKind::kCpu);
  EXPECT_EQ(cpu.max_num_batched_tokens, 512);
  EXPECT_EQ(cpu.form.cache, KvCacheForm::kHeads);
  EXPECT_EQ(cpu.threads.count, 4);
  const EnginePlan gpu = PlanOf({}, TinyV3(), Gpu());
  EXPECT_EQ(gpu.device, DeviceKind::kCuda);
  EXPECT_EQ(gpu.max_num_batched_tokens, 8192);
  EXPECT_EQ(gpu.form.cache, KvCacheForm::kLatent);
  // Hidden rows that are kept: bfloat16 on a GPU, float32 on a processor.
  EXPECT_EQ(gpu.cache.kept_bytes_per_page * 2, cpu.cache.kept_bytes_per_page);
  EXPECT_EQ(PlanOf({.max_num_batched_tokens = 100}, TinyV3(), Gpu()).max_num_batched_tokens, 100);
}

TEST(EnginePlan, WhatAGpuDoesNotRunIsRefusedOrExplained) {
  EXPECT_THAT(RefusalOf({.dtype = DType::kF32}, TinyV3(), Gpu()),
              HasSubstr("the GPU does not run --dtype float32"));
  EXPECT_THAT(RefusalOf({}, GoldenModel("tiny-v32"), Gpu()), HasSubstr("does not run on the GPU"));
  EXPECT_THAT(RefusalOf({.max_num_batched_tokens = 20000}, TinyV3(), Gpu()),
              HasSubstr("use up to 16384"));
  const auto explained = [](const ModelFacts& model) {
    Decisions decisions;
    PlanEngine({}, model, Processor(), decisions);
    return DecisionOn("on a Hopper GPU", decisions);
  };
  const std::string products =
      "float32 products of routers, compressors and weights of index heads with operands rounded "
      "to bfloat16";
  EXPECT_EQ(explained(TinyV3()), "runs (it takes all that the network asks for, " + products + ")");
  EXPECT_THAT(explained(TinyDSpark()), HasSubstr(products));
  ModelFacts plain = TinyV3();
  for (LayerSpec& layer : plain.config.layers) layer.mlp = DenseMlpSpec{.width = 64};
  plain.config.mtp_layer.mlp = DenseMlpSpec{.width = 64};
  EXPECT_EQ(explained(plain), "runs (it takes all that the network asks for)");
  Decisions on_a_gpu;
  PlanEngine({}, TinyV3(), Gpu(), on_a_gpu);
  EXPECT_EQ(DecisionOn("on the GPU", on_a_gpu), products + " (a processor does not round them)");
  EXPECT_THAT(explained(GoldenModel("tiny-v32")), HasSubstr("does not run"));
}

// One layer of latent entries, of 1,152 bytes a token, beside four whose heads have 108 KiB of kept
// rows each.
TEST(EnginePlan, PagesThatGrowForRunningStatesHaveASizeThatTheDeviceReads) {
  const ModelFacts model = {.config = ParseModelConfig(WithGpuHeads(SmallKimiConfig(512)).dump(),
                                                       std::nullopt, "config.json")};
  const auto tokens = [&](int32_t block_size, DType cache, const DeviceFacts& device) {
    const EngineOptions options = {.kv_cache_dtype = cache, .block_size = block_size};
    return PlanOf(options, model, device).cache.config.groups.front().tokens_per_block;
  };
  for (const int32_t asked : {16, 32, 64, 256}) {
    EXPECT_EQ(tokens(asked, DType::kBF16, Gpu()), 256) << asked;
    EXPECT_EQ(tokens(asked, DType::kF8E4M3, Gpu()), 256) << asked;
  }
  EXPECT_EQ(tokens(64, DType::kBF16, Processor()), 96);
}

TEST(EnginePlan, AGpuTakesADrafterWithOtherHeadsThanTheTarget) {
  ModelFacts drafter = TinyV3WithEagle3();
  std::get<MlaSpec>(drafter.drafter->config.layers.front().attention).heads = 4;
  EngineOptions eagle3;
  eagle3.speculation.method = DraftMethod::kEagle3;
  EXPECT_EQ(RefusalOf(eagle3, drafter, Gpu()), "");
}

TEST(EnginePlan, OnAProcessorADraftersEntriesAreNotOf8Bits) {
  ModelFacts model = TinyV3WithEagle3();
  for (LayerSpec& layer : model.config.layers) {
    std::get<MlaSpec>(layer.attention).indexer = IndexerSpec{.heads = 8, .dim = 32, .top_k = 8};
  }
  model.config.num_nextn_predict_layers = 0;
  EngineOptions options;
  EXPECT_EQ(RefusalOf({.kv_cache_dtype = DType::kF8E4M3}, model, Processor()), "");
  options.speculation.method = DraftMethod::kEagle3;
  EXPECT_EQ(RefusalOf(options, model, Processor()), "");
  options.kv_cache_dtype = DType::kF8E4M3;
  EXPECT_THAT(RefusalOf(options, model, Processor()), HasSubstr("the EAGLE-3 drafter"));
}

TEST(EnginePlan, AGpuTakesThePagesOfDeepSeekV4) {
  for (const int32_t block : {16, 32, 64, 256}) {
    EXPECT_EQ(RefusalOf({.block_size = block}, TinyDSpark(), Gpu()), "") << block;
  }
}

TEST(EnginePlan, ModulesThatAreUsedHaveLayersInTheCache) {
  EngineOptions options;
  const auto layers = [&](const ModelFacts& model) {
    return std::ssize(PlanOf(options, model, Processor()).cache.layers);
  };
  EXPECT_EQ(layers(TinyV3()), 5 + 3);
  EXPECT_EQ(layers(TinyV3(1)), 5 + 1);
  options.speculation.num_speculative_tokens = 2;
  EXPECT_EQ(layers(TinyV3()), 5 + 2);
  options.speculation.num_speculative_tokens = 0;
  EXPECT_EQ(layers(TinyV3()), 5);
  options.speculation.num_speculative_tokens.reset();
  options.speculation.method = DraftMethod::kEagle3;
  EXPECT_EQ(layers(TinyV3WithEagle3()), 5 + 1);
}

TEST(EnginePlan, AStepHasRoomForItsRowsAndWhatFollowsThem) {
  EnginePlan plan;
  plan.max_num_batched_tokens = 100;
  EXPECT_EQ(plan.MostStepTokens(), 101);
  plan.drafts.k = 3;
  EXPECT_EQ(plan.MostStepTokens(), 104);
  plan.drafts.reach.lookahead = 5;
  EXPECT_EQ(plan.MostStepTokens(), 106);
  plan.max_num_batched_tokens = 2;
  EXPECT_EQ(plan.MostStepTokens(), 4 + 1 + 5);
  plan.max_num_batched_tokens = 100;
  EXPECT_EQ(plan.MostDecodeTokens(), 4 + 1 + 5);
}

TEST(EnginePlan, LinearAttentionKeepsRowsForFewDrafts) {
  const ModelDirectory model(SmallKimiConfig(64));
  const ModelFacts facts = {.config = ReadModelConfig(model.directory())};
  EngineOptions options;
  options.speculation.method = DraftMethod::kNgram;
  Decisions decisions;
  EXPECT_GT(PlanEngine(options, facts, Processor(), decisions).cache.config.state.heads, 0);
  EXPECT_THAT(DecisionOn("running state", decisions), HasSubstr("linear attention, float32"));
  EXPECT_THAT(DecisionOn("checkpoints", decisions), HasSubstr("tokens of a prompt"));
  decisions.clear();
  options.enable_prefix_caching = false;
  PlanEngine(options, facts, Processor(), decisions);
  EXPECT_EQ(DecisionOn("checkpoints", decisions), "none (--no-enable-prefix-caching)");
  options.speculation.num_speculative_tokens = kMostStateDrafts;
  EXPECT_EQ(RefusalOf(options, facts, Processor()), "");
  options.speculation.num_speculative_tokens = kMostStateDrafts + 1;
  EXPECT_THAT(RefusalOf(options, facts, Processor()),
              HasSubstr("linear attention, which keeps rows for"));
}

}  // namespace
}  // namespace outrider
