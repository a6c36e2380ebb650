// Types of weights, activations and cache, from options, config and device.
#include "outrider/engine/plan/number_plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"

namespace outrider {
namespace {

using testing::HasSubstr;

NumberPlan PlanOf(const EngineOptions& options, const ModelConfig& config,
                  const DeviceFacts& device) {
  Decisions decisions;
  return PlanNumbers(options, config, device, decisions);
}

TEST(NumberPlan, TheCheckpointSaysTheTypeUnlessTheUserDoes) {
  ModelConfig config = TinyV3().config;
  EXPECT_EQ(PlanOf({}, config, Processor()).dtype, DType::kBF16);
  config.dtype = DType::kF16;
  EXPECT_EQ(PlanOf({}, config, Processor()).dtype, DType::kF32);
  EXPECT_EQ(PlanOf({.dtype = DType::kBF16}, config, Processor()).dtype, DType::kBF16);
}

TEST(NumberPlan, TheCacheHasTheTypeOfTheRowsUnlessTheUserSaysAnother) {
  const ModelConfig config = TinyV3().config;
  EXPECT_EQ(PlanOf({.dtype = DType::kF32}, config, Processor()).kv_dtype, DType::kF32);
  const NumberPlan plan =
      PlanOf({.dtype = DType::kF32, .kv_cache_dtype = DType::kBF16}, config, Processor());
  EXPECT_EQ(plan.kv_dtype, DType::kBF16);
  EXPECT_EQ(plan.cache().dtype, DType::kBF16);
  EXPECT_EQ(plan.cache().rotated, DType::kF32);
}

TEST(NumberPlan, WeightsAreKeptAsTheDeviceAndTheUserWantThem) {
  const NumberPlan plan = PlanOf({.dtype = DType::kF32, .quantization = WeightQuantization::kInt8},
                                 TinyV3().config, Processor());
  EXPECT_EQ(plan.weights.compute_dtype, DType::kF32);
  EXPECT_EQ(plan.weights.quantization, WeightQuantization::kInt8);
  EXPECT_EQ(plan.weights.max_fp8_weights_as_bf16, 1000);
  EXPECT_FALSE(plan.weights.whole_attention);
  EXPECT_TRUE(PlanOf({.data_parallel_attention = true}, TinyV3().config, Processor())
                  .weights.whole_attention);
  Decisions decisions;
  PlanNumbers({}, TinyV3().config, Processor(), decisions);
  EXPECT_THAT(DecisionOn("quantization", decisions), HasSubstr("of more than 1000 weights"));
  EXPECT_EQ(DecisionOn("device", decisions), "processor (asked for)");
  EXPECT_EQ(DecisionOn("kernels", decisions), "avx2 (best instruction set of this machine: amx)");
  decisions.clear();
  PlanNumbers({}, TinyV3().config, Gpu(), decisions);
  EXPECT_EQ(DecisionOn("device", decisions), "GPU (there is one)");
  EXPECT_EQ(DecisionOn("kernels", decisions), "");
}

TEST(NumberPlan, ACacheOf8BitsIsForAGpuOrAnIndexer) {
  const EngineOptions fp8 = {.model = "the model", .kv_cache_dtype = DType::kF8E4M3};
  EXPECT_EQ(PlanOf(fp8, TinyDSpark().config, Gpu()).cache().form, Fp8Form::kPerTensor);
  EXPECT_EQ(PlanOf(fp8, TinyDSpark().config, Processor()).cache().form, Fp8Form::kPublished);
  EngineOptions published = fp8;
  published.published_cache = true;
  EXPECT_EQ(PlanOf(published, TinyDSpark().config, Gpu()).cache().form, Fp8Form::kPublishedNumbers);
  EXPECT_EQ(PlanOf(published, TinyDSpark().config, Processor()).cache().form, Fp8Form::kPublished);
  EXPECT_THAT(RefusalBy([&] { PlanOf(published, TinyV3().config, Gpu()); }),
              HasSubstr("fp8_published is for DeepSeek-V4"));
  const auto refusal = [&](const ModelConfig& config, const DeviceFacts& device) {
    return RefusalBy([&] { PlanOf(fp8, config, device); });
  };
  EXPECT_EQ(refusal(TinyV3().config, Gpu()), "");
  EXPECT_THAT(refusal(TinyV3().config, Processor()),
              HasSubstr("the model is a deepseek_v3 on the processor (asked for)"));
  ModelConfig v32 = TinyV3().config;
  const IndexerSpec indexer = {.heads = 64, .dim = 128, .top_k = 2048};
  for (LayerSpec& layer : v32.layers) std::get<MlaSpec>(layer.attention).indexer = indexer;
  EXPECT_THAT(refusal(v32, Processor()), HasSubstr("the model is a deepseek_v3 on the processor"))
      << "its modules have none";
  std::get<MlaSpec>(v32.mtp_layer.attention).indexer = indexer;
  EXPECT_EQ(refusal(v32, Processor()), "");
  std::get<MlaSpec>(v32.layers.back().attention).indexer->dim = 96;
  EXPECT_THAT(refusal(v32, Processor()), HasSubstr("\"index_head_dim\" that is a power of two"));
  ModelConfig v4 = TinyDSpark().config;
  EXPECT_EQ(refusal(v4, Processor()), "");
  std::get<CompressedSpec>(v4.layers.back().attention).index_dim = 24;
  EXPECT_THAT(refusal(v4, Processor()), HasSubstr("\"index_head_dim\" that is a power of two"));
}

}  // namespace
}  // namespace outrider
