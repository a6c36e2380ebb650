// What a device does not run is refused at the start, in one line that says what would run.
#include "outrider/engine/plan/device_rules.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "tests/engine/plan/made_up_facts.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

EnginePlan GpuPlan() {
  EnginePlan plan;
  plan.device = DeviceKind::kCuda;
  plan.drafts.modules = plan.drafts.k = 3;
  return plan;
}

std::string RefusalOf(const std::function<void(EngineOptions&, EnginePlan&)>& change,
                      const ModelFacts& model = TinyV3()) {
  EngineOptions options;
  EnginePlan plan = GpuPlan();
  change(options, plan);
  return RefusalBy([&] { CheckRunsOnDevice(options, model, plan); });
}

TEST(DeviceRules, TheProcessorRunsEverything) {
  EXPECT_EQ(RefusalOf([](EngineOptions& options, EnginePlan& plan) {
              plan.device = DeviceKind::kCpu;
              options.block_size = 7;
              plan.numbers.dtype = DType::kF32;
              plan.form.cache = KvCacheForm::kHeads;
            }),
            "");
}

TEST(DeviceRules, TheGpuSaysWhatItDoesNotRun) {
  using testing::HasSubstr;
  EXPECT_EQ(RefusalOf([](EngineOptions&, EnginePlan&) {}), "");
  EXPECT_THAT(RefusalOf([](EngineOptions&, EnginePlan& p) { p.numbers.dtype = DType::kF32; }),
              HasSubstr("--dtype float32: use bfloat16, or --device cpu"));
  EXPECT_THAT(RefusalOf([](EngineOptions&, EnginePlan& p) { p.numbers.kv_dtype = DType::kF32; }),
              HasSubstr("--kv-cache-dtype float32: use bfloat16 or fp8"));
  EXPECT_EQ(RefusalOf([](EngineOptions&, EnginePlan& p) { p.numbers.kv_dtype = DType::kF8E4M3; }),
            "");
  EXPECT_THAT(RefusalOf([](EngineOptions&, EnginePlan& p) { p.form.cache = KvCacheForm::kHeads; }),
              HasSubstr("--kv-cache-form heads: use latent"));
  EXPECT_THAT(
      RefusalOf([](EngineOptions& o, EnginePlan&) { o.quantization = WeightQuantization::kInt8; }),
      HasSubstr("--quantization int8: use none"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, EnginePlan&) {
                o.attention_backend = AttentionBackend::kUniformPad;
              }),
              HasSubstr("--attention-backend uniform-pad: use ragged"));
  ModelFacts eagle3 = TinyV3WithEagle3();
  EXPECT_EQ(RefusalOf([](EngineOptions&, EnginePlan&) {}, eagle3), "");
  std::get<MlaSpec>(eagle3.drafter->config.layers.front().attention).heads = 4;
  EXPECT_EQ(RefusalOf([](EngineOptions&, EnginePlan&) {}, eagle3), "") << "other heads";
  EXPECT_THAT(RefusalOf([](EngineOptions& o, EnginePlan&) { o.block_size = 100; }),
              HasSubstr("--block-size 100: use 16, 32, 64 or 256"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, EnginePlan&) { o.max_num_seqs = 4097; }),
              HasSubstr("up to 4096"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o, EnginePlan& p) {
                o.max_num_seqs = 4096;
                p.drafts.k = 4;
              }),
              HasSubstr("1 + drafts) = 20480: use up to 16384"));
}

/// What the GPU says of the tiny DeepSeek-V3 after a change of its config.
std::string RefusalOfNetwork(const std::function<void(ModelConfig&)>& change) {
  ModelFacts model = TinyV3();
  change(model.config);
  return RefusalOf([](EngineOptions&, EnginePlan&) {}, model);
}

/// After a change of its attention, in all layers.
std::string RefusalOfAttention(const std::function<void(MlaSpec&)>& change) {
  return RefusalOfNetwork([&](ModelConfig& c) {
    for (LayerSpec& layer : c.layers) change(std::get<MlaSpec>(layer.attention));
    change(std::get<MlaSpec>(c.mtp_layer.attention));
  });
}

/// And of its mixtures of experts.
std::string RefusalOfExperts(const std::function<void(MoeSpec&)>& change) {
  return RefusalOfNetwork([&](ModelConfig& c) { change(std::get<MoeSpec>(c.layers[1].mlp)); });
}

TEST(DeviceRules, TheGpuSaysWhichNetworksItDoesNotRun) {
  using testing::HasSubstr;
  EXPECT_EQ(RefusalOfNetwork([](ModelConfig&) {}), "");
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.latent = 256; }),
              HasSubstr("deepseek_v3 with kv_lora_rank = 256 does not run on the GPU: the kernels "
                        "take 512; --device cpu runs it"));
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.rope = 32; }),
              HasSubstr("qk_rope_head_dim = 32"));
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.heads = 129; }),
              HasSubstr("num_attention_heads = 129"));
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.nope = 100; }),
              HasSubstr("qk_nope_head_dim = 100"));
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.value = 320; }), HasSubstr("v_head_dim = 320"));
  EXPECT_THAT(RefusalOfAttention([](MlaSpec& a) { a.q_lora = 4096; }),
              HasSubstr("q_lora_rank = 4096"));
  EXPECT_THAT(RefusalOfNetwork([](ModelConfig& c) { c.hidden_size = 8200; }),
              HasSubstr("hidden_size = 8200"));
  EXPECT_THAT(RefusalOfNetwork([](ModelConfig& c) { c.vocab_size = 400'001; }),
              HasSubstr("vocab_size = 400001"));
  EXPECT_EQ(
      RefusalOfNetwork([](ModelConfig& c) { std::get<MlaSpec>(c.mtp_layer.attention).heads = 16; }),
      "")
      << "layers may differ in shape";
  const GqaSpec gqa = {.heads = 128, .kv_heads = 2, .head_dim = 128};
  EXPECT_EQ(RefusalOfNetwork([&](ModelConfig& c) {
              c.layers[1].attention = gqa;
              c.layers[1].rotary.dims = 64;
            }),
            "")
      << "and in the path of their rows";
  EXPECT_THAT(RefusalOfNetwork([&](ModelConfig& c) {
                c.layers[0].attention = gqa;
                std::get<GqaSpec>(c.layers[0].attention).head_dim = 64;
              }),
              HasSubstr("head_dim = 64"));
  EXPECT_THAT(RefusalOfNetwork([&](ModelConfig& c) {
                c.layers[0].attention = gqa;
                std::get<GqaSpec>(c.layers[0].attention).kv_heads = 1;
              }),
              HasSubstr("query heads for each key head = 128"));
  EXPECT_THAT(RefusalOfNetwork([](ModelConfig& c) { c.layers[2].attention = CompressedSpec(); }),
              HasSubstr("width of a compressed entry = 0"));
  EXPECT_EQ(RefusalOfNetwork([](ModelConfig& c) { c.layers[2].residual.streams = 4; }), "");
  EXPECT_THAT(RefusalOfNetwork([](ModelConfig& c) { c.layers[2].residual.streams = 3; }),
              HasSubstr("hc_mult = 3"));
  EXPECT_THAT(RefusalOfExperts([](MoeSpec& m) { m.router.experts = 12; }),
              HasSubstr("n_routed_experts = 12"));
  EXPECT_THAT(RefusalOfExperts([](MoeSpec& m) { m.shared_width = 204; }),
              HasSubstr("width of the shared experts = 204"));
  EXPECT_THAT(RefusalOfExperts([](MoeSpec& m) { m.router.top_k = 33; }),
              HasSubstr("experts of a token, the shared ones included = "));
  EXPECT_EQ(RefusalOfExperts([](MoeSpec& m) { m.router.method = RouterMethod::kTokenTable; }), "");
  EXPECT_EQ(RefusalOfExperts([](MoeSpec& m) { m.router.scoring = RouterScoring::kSqrtSoftplus; }),
            "");
  EXPECT_EQ(RefusalOfNetwork([](ModelConfig& c) { c.dspark.emplace(); }), "");
}

TEST(DeviceRules, TheGpuSaysWhatOfDeepSeekV4ItDoesNotRun) {
  using testing::HasSubstr;
  const auto refusal = [](const std::function<void(EnginePlan&)>& change) {
    return RefusalOf([&](EngineOptions&, EnginePlan& plan) { change(plan); }, TinyDSpark());
  };
  EXPECT_EQ(refusal([](EnginePlan&) {}), "");
  EXPECT_EQ(refusal([](EnginePlan& p) { p.numbers.kv_dtype = DType::kF8E4M3; }), "");
  const auto pages = [](int32_t tokens) {
    return [tokens](EnginePlan& p) {
      p.cache.config.groups = {{.tokens_per_block = tokens}};
      p.cache.layers = {{.width = 128, .ratio = 4, .use = CacheUse::kIndexKeys}};
    };
  };
  EXPECT_EQ(refusal(pages(256)), "");
  EXPECT_THAT(refusal(pages(192)),
              HasSubstr("tokens a page of a cache group (--block-size) = 192"));
  EXPECT_THAT(refusal(pages(16)), HasSubstr("index keys a page (--block-size) = 4"));
  EXPECT_THAT(refusal([](EnginePlan& p) {
                p.cache.config.groups = {
                    {.tokens_per_block = 64, .unit_tokens = 4, .unit_bytes = 512 + 132}};
              }),
              HasSubstr("bytes of a page of the cache (--block-size) = 10304"));
  ModelFacts model = TinyDSpark();
  std::get<CompressedSpec>(model.config.layers[1].attention).index_heads = 12;
  EXPECT_THAT(RefusalOf([](EngineOptions&, EnginePlan&) {}, model),
              HasSubstr("index heads of compressed attention = 12"));
}

TEST(DeviceRules, TheGpuSaysWhichIndexersItDoesNotRun) {
  using testing::HasSubstr;
  const auto refusal = [](const IndexerSpec& indexer) {
    return RefusalOfAttention([&](MlaSpec& a) { a.indexer = indexer; });
  };
  EXPECT_EQ(refusal({.heads = 64, .dim = 128, .top_k = 2048}), "");
  EXPECT_THAT(refusal({.heads = 12, .dim = 128, .top_k = 2048}),
              HasSubstr("index_n_heads = 12 does not run on the GPU: the kernels take 8, 16, 32 "
                        "or 64"));
  EXPECT_THAT(refusal({.heads = 64, .dim = 64, .top_k = 2048}), HasSubstr("index_head_dim = 64"));
  EXPECT_THAT(refusal({.heads = 64, .dim = 128, .top_k = 4097}), HasSubstr("index_topk = 4097"));

  ModelFacts model = TinyV3WithEagle3();
  for (LayerSpec& layer : model.config.layers) {
    std::get<MlaSpec>(layer.attention).indexer =
        IndexerSpec{.heads = 64, .dim = 128, .top_k = 2048};
  }
  const auto no_modules = [](EngineOptions&, EnginePlan& p) { p.drafts.modules = 0; };
  EXPECT_EQ(RefusalOf(no_modules, model), "") << "with an EAGLE-3 drafter";
  EXPECT_EQ(RefusalOf(
                [](EngineOptions&, EnginePlan& p) {
                  p.drafts.modules = 0;
                  p.numbers.kv_dtype = DType::kF8E4M3;
                },
                model),
            "");
  for (LayerSpec& layer : model.config.layers) {
    layer.attention = GqaSpec{.heads = 128, .kv_heads = 2, .head_dim = 128};
    layer.rotary.dims = 64;
  }
  EXPECT_THAT(RefusalOf(no_modules, model),
              HasSubstr("does not run on the GPU, which lacks: an EAGLE-3 drafter with latent "
                        "attention (MLA) for a network without"));
}

TEST(DeviceRules, DraftersWithLlamasAttentionRunBesideAnyNetworkOnTheGpu) {
  using testing::HasSubstr;
  ModelFacts model = TinyV3WithEagle3();
  LayerSpec& layer = model.drafter->config.layers.front();
  const auto drafter = [&](int64_t heads, int64_t kv_heads, int64_t head_dim) {
    layer.attention = GqaSpec{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
    layer.rotary.dims = head_dim;
    return RefusalOf([](EngineOptions&, EnginePlan& p) { p.drafts.modules = 0; }, model);
  };
  EXPECT_EQ(drafter(56, 8, 128), "");
  EXPECT_EQ(drafter(64, 64, 128), "");
  EXPECT_THAT(drafter(64, 8, 64), HasSubstr("head_dim = 64 does not run on the GPU"));
  for (LayerSpec& of_model : model.config.layers) {
    of_model.attention = GqaSpec{.heads = 128, .kv_heads = 2, .head_dim = 128};
    of_model.rotary.dims = 64;
  }
  EXPECT_EQ(drafter(56, 8, 128), "") << "beside grouped-query attention";
}

// Every rule about options reads all layers: the first one may have attention of another kind.
TEST(DeviceRules, RulesAboutOptionsReadEveryLayer) {
  using testing::HasSubstr;
  const auto heads = [](EngineOptions&, EnginePlan& p) { p.form.cache = KvCacheForm::kHeads; };
  const auto pages = [](int32_t tokens) {
    return [tokens](EngineOptions&, EnginePlan& p) {
      p.form.cache = KvCacheForm::kHeads;
      p.cache.config.groups = {{.tokens_per_block = tokens, .unit_bytes = 101}};
    };
  };
  for (const auto& config : {SmallKimiConfig(512), SmallLingConfig(512)}) {
    const ModelFacts hybrid = {
        .config = ParseModelConfig(WithGpuHeads(config).dump(), std::nullopt, "config.json")};
    ASSERT_TRUE(std::holds_alternative<KdaSpec>(hybrid.config.layers.front().attention));
    const auto no_drafts = [](EngineOptions&, EnginePlan& p) { p.drafts = {}; };
    EXPECT_EQ(RefusalOf(no_drafts, hybrid), "") << hybrid.config.model_type;
    EXPECT_THAT(RefusalOf(
                    [&](EngineOptions& o, EnginePlan& p) {
                      no_drafts(o, p);
                      heads(o, p);
                    },
                    hybrid),
                HasSubstr("--kv-cache-form heads: use latent"))
        << hybrid.config.model_type;
  }
  ModelFacts mixed = TinyV3();
  for (LayerSpec& layer : mixed.config.layers) {
    layer.attention = GqaSpec{.heads = 128, .kv_heads = 2, .head_dim = 128};
    layer.rotary.dims = 64;
  }
  EXPECT_THAT(RefusalOf(heads, mixed), HasSubstr("--kv-cache-form heads")) << "of the modules";
  mixed.config.mtp_layer = mixed.config.layers.front();
  EXPECT_EQ(RefusalOf(heads, mixed), "") << "no layer has latents";
  EXPECT_THAT(RefusalOf(pages(12), mixed), HasSubstr("(--block-size) = 12: use multiples of 8"));
  const CompressedSpec compressed =
      std::get<CompressedSpec>(TinyDSpark().config.layers.back().attention);
  mixed.config.layers.back().attention = compressed;
  EXPECT_THAT(RefusalOf(pages(192), mixed), HasSubstr("(--block-size) = 192: use 1, 2, 4"));
  EXPECT_THAT(RefusalOf(pages(64), mixed), HasSubstr("bytes of a page of the cache"));
  EXPECT_THAT(RefusalOf(pages(12), mixed), HasSubstr("(--block-size) = 12: use multiples of 8"));
}

TEST(DeviceRules, LatentAttentionOnTheGpuReadsPagesOfFewSizes) {
  const auto refusal = [](int32_t tokens, int32_t window) {
    return RefusalOf([&](EngineOptions&, EnginePlan& p) {
      p.cache.config.groups = {
          {.kind = CacheGroupKind::kSlidingWindow, .tokens_per_block = window, .window = 512},
          {.tokens_per_block = tokens}};
    });
  };
  EXPECT_EQ(refusal(64, 8), "");
  EXPECT_EQ(refusal(256, 128), "");
  EXPECT_THAT(refusal(128, 64),
              testing::HasSubstr("tokens a page (--block-size) = 128: use 16, 32, 64 or 256"));
}

// docs/gpu.md holds the rules between two marks. With OUTRIDER_UPDATE_DOCS=1 this test writes them
// anew instead of comparing.
TEST(DeviceRules, TheDocumentedTableIsMadeOfTheRules) {
  const std::string path = SourceDirectory() / "docs/gpu.md";
  std::ifstream in(path);
  std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string begin = "<!-- support: made from the rules -->\n";
  const size_t first = page.find(begin);
  const size_t last = page.find("<!-- end of support -->");
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  const size_t start = first + begin.size();
  const std::string table = "\n" + GpuSupportTable() + "\n";
  if (std::getenv("OUTRIDER_UPDATE_DOCS") != nullptr) {
    page.replace(start, last - start, table);
    std::ofstream(path) << page;
    return;
  }
  EXPECT_EQ(page.substr(start, last - start), table)
      << path << " is out of date; run: OUTRIDER_UPDATE_DOCS=1 plan_test "
      << "--gtest_filter='DeviceRules.*'";
}

}  // namespace
}  // namespace outrider
