// The form of the KV cache and the paths of rows, from options, config and device.
#include "outrider/engine/plan/form_plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"

namespace outrider {
namespace {

using testing::HasSubstr;

struct Asked {
  std::string model = "tiny-v3-mtp3";
  std::optional<KvCacheForm> form = std::nullopt;
  AttentionBackend backend = AttentionBackend::kRagged;
  DeviceKind device = DeviceKind::kCpu;
};

FormPlan PlanOf(const Asked& asked, Decisions* decisions = nullptr) {
  EngineOptions options;
  options.model = "the model";
  options.kv_cache_form = asked.form;
  options.attention_backend = asked.backend;
  Decisions own;
  return PlanForm(options, GoldenModel(asked.model).config, DType::kBF16, asked.device,
                  decisions == nullptr ? own : *decisions);
}

std::string DecisionOf(const std::string& what, const Asked& asked) {
  Decisions decisions;
  PlanOf(asked, &decisions);
  return DecisionOn(what, decisions);
}

std::string RefusalOf(const Asked& asked) {
  return RefusalBy([&] { PlanOf(asked); });
}

TEST(FormPlan, LatentAttentionIsCachedByWhatItCosts) {
  const FormPlan saves = PlanOf({});
  EXPECT_EQ(saves.cache, KvCacheForm::kHeads);
  EXPECT_FALSE(saves.paths.ByRole());
  EXPECT_EQ(DecisionOf("KV cache form", {}),
            "heads (saves 8 or more multiply-adds per number added; latent: 1152 bytes and 8704 "
            "multiply-adds per cached token and layer; heads: 2176 bytes and 1536 multiply-adds "
            "per cached token and layer)");
  EXPECT_EQ(PlanOf({.form = KvCacheForm::kLatent}).cache, KvCacheForm::kLatent);
  EXPECT_TRUE(PlanOf({.form = KvCacheForm::kLatent}).paths.ByRole());
  EXPECT_THAT(DecisionOf("KV cache form", {.form = KvCacheForm::kLatent}),
              HasSubstr("(--kv-cache-form; "));
}

TEST(FormPlan, AGpuAndDecodeKernelsTakeLatents) {
  EXPECT_EQ(PlanOf({.device = DeviceKind::kCuda}).cache, KvCacheForm::kLatent);
  EXPECT_THAT(DecisionOf("KV cache form", {.device = DeviceKind::kCuda}), HasSubstr("the GPU"));
  EXPECT_EQ(PlanOf({.backend = AttentionBackend::kSingle}).cache, KvCacheForm::kLatent);
  EXPECT_THAT(DecisionOf("KV cache form", {.backend = AttentionBackend::kSingle}),
              HasSubstr("--attention-backend single needs it"));
}

TEST(FormPlan, OtherAttentionHasOneForm) {
  for (const char* model : {"tiny-step3p5", "tiny-v4"}) {
    EXPECT_EQ(PlanOf({.model = model}).cache, KvCacheForm::kHeads) << model;
    EXPECT_EQ(PlanOf({.model = model, .form = KvCacheForm::kHeads}).cache, KvCacheForm::kHeads);
    EXPECT_THAT(RefusalOf({.model = model, .form = KvCacheForm::kLatent}),
                HasSubstr("--kv-cache-form latent needs latent attention"));
    EXPECT_THAT(RefusalOf({.model = model, .backend = AttentionBackend::kSingle}),
                HasSubstr("use ragged"));
  }
  EXPECT_THAT(DecisionOf("KV cache form", {.model = "tiny-step3p5"}),
              HasSubstr("which groups of query heads share"));
  EXPECT_THAT(DecisionOf("KV cache form", {.model = "tiny-v4"}),
              HasSubstr("that are key and value of all"));
}

TEST(FormPlan, AnIndexerReadsLatents) {
  const FormPlan plan = PlanOf({.model = "tiny-v32"});
  EXPECT_EQ(plan.cache, KvCacheForm::kLatent);
  EXPECT_EQ(plan.paths, RowPaths(RowPath::kListed));
  EXPECT_EQ(DecisionOf("KV cache form", {.model = "tiny-v32"}),
            "latent (entries of 48 numbers, and an index key of 24)");
  EXPECT_THAT(DecisionOf("all tokens", {.model = "tiny-v32"}),
              HasSubstr("absorbed form (over the 8 tokens that an indexer chooses"));
  EXPECT_EQ(RefusalOf({.model = "tiny-v32", .form = KvCacheForm::kLatent}), "");
  EXPECT_THAT(RefusalOf({.model = "tiny-v32", .backend = AttentionBackend::kSingle}),
              HasSubstr("leave --kv-cache-form and --attention-backend out"));
  EXPECT_THAT(RefusalOf({.model = "tiny-v32", .form = KvCacheForm::kHeads}),
              HasSubstr("leave --kv-cache-form and --attention-backend out"));
}

TEST(FormPlan, LayersMayDifferInThePathOfTheirRows) {
  ModelConfig config = GoldenModel("tiny-v32").config;
  std::get<MlaSpec>(config.layers.back().attention).indexer.reset();
  EngineOptions options;
  options.model = "the model";
  Decisions decisions;
  const auto plan = [&] {
    return PlanForm(options, config, DType::kBF16, DeviceKind::kCuda, decisions);
  };
  EXPECT_EQ(plan().cache, KvCacheForm::kLatent);
  EXPECT_EQ(plan().paths, RowPaths(RowPath::kListed) | KvCacheForm::kLatent);
  EXPECT_THAT(DecisionOn("all tokens, where there is an indexer", decisions),
              HasSubstr("absorbed form"));
  EXPECT_THAT(DecisionOn("prompt tokens", decisions), HasSubstr("expanded"));
  options.attention_backend = AttentionBackend::kSingle;
  EXPECT_THAT(RefusalBy([&] { plan(); }), HasSubstr("use ragged"));
}

TEST(FormPlan, SaysWhichPathsRowsTake) {
  EXPECT_THAT(DecisionOf("all tokens", {}), HasSubstr("per-head form"));
  const Asked latent = {.form = KvCacheForm::kLatent};
  EXPECT_EQ(DecisionOf("all tokens", latent), "");
  EXPECT_THAT(DecisionOf("prompt tokens", latent), HasSubstr("expanded"));
  EXPECT_THAT(DecisionOf("generated tokens", latent), HasSubstr("absorbed"));
  EXPECT_THAT(DecisionOf("attention backend", {}), HasSubstr("bit for bit"));
}

}  // namespace
}  // namespace outrider
