#include "outrider/checkpoint/model_config.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/checkpoint/published_configs.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MlaSpec& Mla(const ModelConfig& c) { return std::get<MlaSpec>(c.layers.front().attention); }
const RotarySpec& Rotary(const ModelConfig& c) { return c.layers.front().rotary; }
/// The experts of the last layer, which all published models have.
const MoeSpec& Moe(const ModelConfig& c) { return std::get<MoeSpec>(c.layers.back().mlp); }
const RouterSpec& Router(const ModelConfig& c) { return Moe(c).router; }
int64_t NumDenseLayers(const ModelConfig& c) {
  return std::ranges::count_if(c.layers, [](const LayerSpec& l) { return l.dense() != nullptr; });
}

ModelConfig Parse(const std::string& text) { return ParseModelConfig(text, std::nullopt, "c"); }

/// kDeepSeekV3 with keys replaced or, where `changes` says null, set to null.
ModelConfig ParseV3With(const json& changes) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  config.update(changes);
  return Parse(config.dump());
}

TEST(ModelConfigTest, DeepSeekV3) {
  const ModelConfig c = Parse(test_checkpoints::kDeepSeekV3);
  EXPECT_EQ(c.family, ModelFamily::kDeepSeekV3);
  EXPECT_EQ(c.model_type, "deepseek_v3");
  EXPECT_EQ(c.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(c.tensor_prefix, "");
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_hidden_layers(), 61);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_EQ(c.max_position_embeddings, 163840);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(Mla(c).latent_norm_eps, 1e-6);
  EXPECT_EQ(Mla(c).heads, 128);
  EXPECT_EQ(Mla(c).q_lora, 1536);
  EXPECT_EQ(Mla(c).latent, 512);
  EXPECT_EQ(Mla(c).nope, 128);
  EXPECT_EQ(Mla(c).rope, 64);
  EXPECT_EQ(Mla(c).query_width(), 192);
  EXPECT_EQ(Mla(c).value, 128);
  EXPECT_TRUE(Rotary(c).interleaved);
  EXPECT_EQ(Rotary(c).theta, 10000);
  ASSERT_TRUE(Rotary(c).yarn);
  EXPECT_EQ(Rotary(c).yarn->factor, 40);
  EXPECT_EQ(Rotary(c).yarn->original_max_position_embeddings, 4096);
  EXPECT_EQ(Rotary(c).yarn->beta_fast, 32);
  EXPECT_EQ(Rotary(c).yarn->beta_slow, 1);
  EXPECT_EQ(Rotary(c).yarn->mscale, 1);
  EXPECT_EQ(Rotary(c).yarn->mscale_all_dim, 1);
  EXPECT_EQ(c.layers.front().dense()->width, 18432);
  EXPECT_EQ(Moe(c).width, 2048);
  EXPECT_EQ(Router(c).experts, 256);
  EXPECT_EQ(Moe(c).shared_experts, 1);
  EXPECT_EQ(Router(c).top_k, 8);
  EXPECT_EQ(Router(c).groups, 8);
  EXPECT_EQ(Router(c).top_groups, 4);
  EXPECT_EQ(NumDenseLayers(c), 3);
  EXPECT_EQ(Router(c).scoring, RouterScoring::kSigmoid);
  EXPECT_EQ(Router(c).method, RouterMethod::kNoAuxTc);
  EXPECT_TRUE(Router(c).normalise);
  EXPECT_EQ(Router(c).scaling_factor, 2.5);
  EXPECT_FALSE(c.mtp_zero_first_embedding);
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_EQ(c.quantization.method, "fp8");
  EXPECT_EQ(c.quantization.block_rows, 128);
  EXPECT_EQ(c.quantization.block_cols, 128);
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
  EXPECT_FALSE(c.default_temperature);
  // (192)^-1/2 · (0.1 ln 40 + 1)^2
  EXPECT_NEAR(Mla(c).softmax_scale, 0.13523, 5e-6);
  EXPECT_EQ(Rotary(c).Magnitude(), 1);
}

TEST(ModelConfigTest, DeepSeekV2Lite) {
  const ModelConfig c = Parse(test_checkpoints::kDeepSeekV2Lite);
  EXPECT_EQ(c.family, ModelFamily::kDeepSeekV2);
  EXPECT_EQ(Mla(c).q_lora, 0);
  EXPECT_EQ(Mla(c).heads, 16);
  EXPECT_EQ(Moe(c).shared_experts, 2);
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_EQ(Router(c).scoring, RouterScoring::kSoftmax);
  EXPECT_EQ(Router(c).method, RouterMethod::kGreedy);
  EXPECT_FALSE(Router(c).normalise);
  EXPECT_EQ(c.quantization.method, "");
  EXPECT_EQ(c.bos_token_id, 100000);
  EXPECT_NEAR(Mla(c).softmax_scale, 0.11472, 5e-6);
  EXPECT_EQ(Rotary(c).Magnitude(), 1);
}

TEST(ModelConfigTest, DeepSeekV2) {
  const ModelConfig c = Parse(test_checkpoints::kDeepSeekV2);
  EXPECT_EQ(Mla(c).q_lora, 1536);
  EXPECT_EQ(Router(c).method, RouterMethod::kGroupLimitedGreedy);
  EXPECT_EQ(Router(c).groups, 8);
  EXPECT_EQ(Router(c).top_groups, 3);
  EXPECT_EQ(Router(c).scaling_factor, 16);
}

TEST(ModelConfigTest, KimiK2) {
  const ModelConfig c = Parse(test_checkpoints::kKimiK2);
  EXPECT_EQ(c.family, ModelFamily::kDeepSeekV3);
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_EQ(Router(c).experts, 384);
  EXPECT_EQ(Router(c).groups, 1);
  EXPECT_EQ(Rotary(c).theta, 50000);
  EXPECT_EQ(Rotary(c).yarn->beta_fast, Rotary(c).yarn->beta_slow);
  EXPECT_EQ(NumDenseLayers(c), 1);
}

TEST(ModelConfigTest, KimiK25IsReadFromItsTextConfig) {
  const ModelConfig c = Parse(test_checkpoints::kKimiK25);
  EXPECT_EQ(c.family, ModelFamily::kDeepSeekV3);
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_EQ(c.tensor_prefix, "language_model.");
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(Mla(c).latent_norm_eps, 1e-6);
  EXPECT_EQ(c.quantization.method, "compressed-tensors");
  EXPECT_EQ(c.quantization.format, StoredFormat::kInt4);
  EXPECT_TRUE(c.quantization.Covers("model.layers.1.mlp.experts.383.down_proj"));
  for (const char* module :
       {"lm_head", "model.layers.1.self_attn.kv_b_proj", "model.layers.0.mlp.up_proj",
        "model.layers.1.mlp.shared_experts.up_proj", "vision_tower.encoder.blocks.0.mlp.fc0"}) {
    EXPECT_FALSE(c.quantization.Covers(module)) << module;
  }
  EXPECT_THAT(c.eos_token_ids, ElementsAre(163586));
  EXPECT_FALSE(c.default_top_k);  // only generation_config.json counts
}

TEST(ModelConfigTest, KeysMissingFromTextConfigComeFromAround) {
  json config = json::parse(test_checkpoints::kKimiK25);
  for (const char* key : {"dtype", "bos_token_id", "eos_token_id"})
    config["text_config"].erase(key);
  const ModelConfig c = Parse(config.dump());
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(163586));
}

TEST(ModelConfigTest, Glm47Flash) {
  const ModelConfig c = Parse(test_checkpoints::kGlm47Flash);
  EXPECT_EQ(c.family, ModelFamily::kGlm4MoeLite);
  EXPECT_TRUE(Rotary(c).interleaved);
  EXPECT_FALSE(Rotary(c).yarn);
  EXPECT_EQ(Rotary(c).theta, 1e6);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(Mla(c).latent_norm_eps, 1e-6);
  EXPECT_EQ(Router(c).scoring, RouterScoring::kSigmoid);
  EXPECT_EQ(Router(c).method, RouterMethod::kNoAuxTc);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(154820, 154827, 154829));
  EXPECT_FALSE(c.bos_token_id);
  EXPECT_EQ(Mla(c).softmax_scale, 1.0 / 16);
  EXPECT_EQ(Rotary(c).Magnitude(), 1);
}

TEST(ModelConfigTest, DeepSeekV32AndGlm5HaveAnIndexer) {
  json config = json::parse(test_checkpoints::kDeepSeekV3);
  EXPECT_FALSE(Mla(Parse(config.dump())).indexer);
  config["model_type"] = "deepseek_v32";
  config["architectures"] = {"DeepseekV32ForCausalLM"};
  config.update({{"index_n_heads", 64}, {"index_head_dim", 128}, {"index_topk", 2048}});
  const ModelConfig v32 = Parse(config.dump());
  EXPECT_EQ(v32.family, ModelFamily::kDeepSeekV3);
  EXPECT_EQ(Mla(v32).indexer,
            (IndexerSpec{.heads = 64, .dim = 128, .top_k = 2048, .interleaved = false}));
  EXPECT_TRUE(Rotary(v32).interleaved);

  json glm = json::parse(test_checkpoints::kGlm47Flash);
  glm["model_type"] = "glm_moe_dsa";
  glm["architectures"] = {"GlmMoeDsaForCausalLM"};
  glm.update({{"index_n_heads", 32}, {"index_head_dim", 128}, {"index_topk", 2048}});
  glm["layer_types"] = std::vector<std::string>(47, "indexed_attention");
  glm["indexer_types"] = std::vector<std::string>(47, "full");
  EXPECT_EQ(Mla(Parse(glm.dump())).indexer,
            (IndexerSpec{.heads = 32, .dim = 128, .top_k = 2048, .interleaved = true}));
}

TEST(ModelConfigTest, WhatTransformers5Writes) {
  json config = json::parse(test_checkpoints::kGlm47Flash);
  config.erase("first_k_dense_replace");
  config.erase("topk_method");
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 5000.0}, {"rope_type", "default"}};
  config["mlp_layer_types"] = std::vector<std::string>(47, "sparse");
  config["mlp_layer_types"][0] = "dense";
  config["mlp_layer_types"][1] = "dense";
  const ModelConfig glm = Parse(config.dump());
  EXPECT_EQ(Rotary(glm).theta, 5000);
  EXPECT_FALSE(Rotary(glm).yarn);
  EXPECT_EQ(NumDenseLayers(glm), 2);
  EXPECT_EQ(Router(glm).method, RouterMethod::kNoAuxTc);

  json v3 = json::parse(test_checkpoints::kDeepSeekV3);
  for (const char* key : {"topk_method", "scoring_func", "moe_layer_freq", "rope_theta"}) {
    v3.erase(key);
  }
  v3["rope_parameters"] = v3["rope_scaling"];
  v3["rope_parameters"]["rope_type"] = "yarn";
  v3["rope_parameters"]["rope_theta"] = 10000.0;
  v3.erase("rope_scaling");
  EXPECT_NEAR(Mla(Parse(v3.dump())).softmax_scale, 0.13523, 5e-6);
  EXPECT_EQ(Rotary(Parse(v3.dump())).theta, 10000);
}

TEST(ModelConfigTest, RopeMagnitudeIsTheRatioOfBothScales) {
  const ModelConfig c = ParseV3With({{"rope_scaling",
                                      {{"type", "yarn"},
                                       {"factor", 40},
                                       {"original_max_position_embeddings", 4096},
                                       {"mscale", 1.0},
                                       {"mscale_all_dim", 0.5}}}});
  EXPECT_DOUBLE_EQ(Rotary(c).Magnitude(), (0.1 * std::log(40) + 1) / (0.05 * std::log(40) + 1));
  EXPECT_DOUBLE_EQ(Mla(c).softmax_scale, std::pow(0.05 * std::log(40) + 1, 2) / std::sqrt(192));
  EXPECT_EQ(Rotary(c).yarn->beta_fast, 32);
}

TEST(ModelConfigTest, YarnsTruncateIsRead) {
  json yarn = json::parse(test_checkpoints::kDeepSeekV3)["rope_scaling"];
  EXPECT_TRUE(Rotary(ParseV3With({{"rope_scaling", yarn}})).yarn->truncate);
  yarn["truncate"] = false;
  EXPECT_FALSE(Rotary(ParseV3With({{"rope_scaling", yarn}})).yarn->truncate);
}

TEST(ModelConfigTest, DenseModel) {
  for (const json& experts : {json(nullptr), json(0)}) {
    const ModelConfig c = ParseV3With({{"n_routed_experts", experts}});
    EXPECT_EQ(NumDenseLayers(c), 61);
    EXPECT_EQ(c.mtp_layer.moe(), nullptr);
  }
}

TEST(ModelConfigTest, WhichLayersHaveExperts) {
  const ModelConfig c = ParseV3With({{"moe_layer_freq", 2}});
  EXPECT_EQ(c.layer(2).moe(), nullptr);
  EXPECT_EQ(c.layer(3).moe(), nullptr);
  EXPECT_NE(c.layer(4).moe(), nullptr);
  EXPECT_NE(c.layer(61).moe(), nullptr);  // the MTP module
}

TEST(ModelConfigTest, OtherDTypes) {
  EXPECT_EQ(ParseV3With({{"torch_dtype", "float16"}}).dtype, DType::kF16);
  EXPECT_EQ(ParseV3With({{"dtype", "float32"}}).dtype, DType::kF32);
}

TEST(ModelConfigTest, GenerationConfigGoesFirst) {
  const ModelConfig c = ParseModelConfig(
      test_checkpoints::kDeepSeekV3,
      R"({"eos_token_id": [5, 6], "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.1, "do_sample": false})",
      "c");
  EXPECT_THAT(c.eos_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_EQ(c.default_temperature, 0.6);
  EXPECT_EQ(c.default_top_p, 0.95);
  EXPECT_EQ(c.default_top_k, 20);
  EXPECT_EQ(c.default_min_p, 0.05);
  EXPECT_EQ(c.default_repetition_penalty, 1.1);
}

TEST(ModelConfigTest, ReadsTheBundledModel) {
  const ModelConfig c = ReadModelConfig(SourceDirectory() / "models/tiny-v3-mtp3");
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.num_nextn_predict_layers, 3);
  EXPECT_EQ(Rotary(c).yarn->factor, 4);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
}

TEST(ModelConfigTest, DirectoriesThatCannotBeRead) {
  const TemporaryDirectory directory;
  EXPECT_THAT(test_checkpoints::ErrorOf([&] { ReadModelConfig(directory.path() / "none"); }),
              HasSubstr("none: is not a directory; a Hugging Face model directory is needed"));
  EXPECT_THAT(test_checkpoints::ErrorOf([&] { ReadModelConfig(directory.path()); }),
              HasSubstr("not_found: " + (directory.path() / "config.json").string() +
                        ": cannot be opened"));
  test_checkpoints::WriteFile(directory.path() / "config.json", test_checkpoints::kDeepSeekV3);
  test_checkpoints::WriteFile(directory.path() / "generation_config.json", "{\"top_p\": 7}");
  EXPECT_THAT(test_checkpoints::ErrorOf([&] { ReadModelConfig(directory.path()); }),
              HasSubstr("\"top_p\" of generation_config.json is 7: a number from 0 to 1"));
}

}  // namespace
}  // namespace outrider
