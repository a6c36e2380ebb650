// The configs of DeepSeek-V4, as they are published, and what is refused of them. One
// case per key makes it long.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/checkpoint_writer.h"

namespace outrider {
namespace {

using nlohmann::json;
using outrider::test_checkpoints::ErrorOf;
using ::testing::HasSubstr;

/// 43 layers and one MTP module.
json V4Flash() {
  json ratios = {0, 0};
  for (int i = 0; i < 20; ++i) {
    ratios.push_back(4);
    ratios.push_back(128);
  }
  ratios.push_back(4);
  ratios.push_back(0);
  return {{"architectures", {"DeepseekV4ForCausalLM"}},
          {"model_type", "deepseek_v4"},
          {"vocab_size", 129280},
          {"hidden_size", 4096},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 43},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 1024},
          {"o_groups", 8},
          {"o_lora_rank", 1024},
          {"sliding_window", 128},
          {"compress_ratios", ratios},
          {"index_n_heads", 64},
          {"index_head_dim", 128},
          {"index_topk", 512},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 6},
          {"scoring_func", "sqrtsoftplus"},
          {"norm_topk_prob", true},
          {"topk_method", "noaux_tc"},
          {"routed_scaling_factor", 1.5},
          {"num_hash_layers", 3},
          {"swiglu_limit", 10.0},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"original_max_position_embeddings", 65536}}},
          {"max_position_embeddings", 1048576},
          {"num_nextn_predict_layers", 1},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"expert_dtype", "fp4"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"scale_fmt", "ue8m0"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}}},
          {"bos_token_id", 0},
          {"eos_token_id", 1}};
}

ModelConfig ParseV4(const json& config) {
  return ParseModelConfig(config.dump(), std::nullopt, "config.json");
}

const CompressedSpec& Attention(const LayerSpec& layer) {
  return std::get<CompressedSpec>(layer.attention);
}

TEST(DeepSeekV4ConfigTest, AsPublished) {
  const ModelConfig c = ParseV4(V4Flash());
  EXPECT_EQ(c.family, ModelFamily::kDeepSeekV4);
  ASSERT_EQ(c.num_hidden_layers(), 43);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  for (int64_t i = 0; i < 43; ++i) {
    const LayerSpec& layer = c.layer(i);
    const int64_t ratio = i < 2 ? 0 : i % 2 == 0 ? 4 : 128;
    CompressedSpec want = {.heads = 64,
                           .head_dim = 512,
                           .q_lora = 1024,
                           .window = 128,
                           .output_groups = 8,
                           .output_rank = 1024,
                           .ratio = ratio,
                           .overlaps = ratio == 4,
                           .softmax_scale = Attention(layer).softmax_scale};
    if (ratio == 4) {
      want.index_heads = 64;
      want.index_dim = 128;
      want.index_top_k = 512;
    }
    EXPECT_EQ(Attention(layer), want) << i;
    EXPECT_FLOAT_EQ(static_cast<float>(want.softmax_scale * want.softmax_scale), 1.0F / 512);
    EXPECT_EQ(layer.rotary.dims, 64);
    EXPECT_TRUE(layer.rotary.interleaved);
    EXPECT_EQ(layer.rotary.theta, ratio == 0 ? 10000 : 160000);
    EXPECT_EQ(layer.rotary.yarn.has_value(), ratio != 0);
    EXPECT_EQ(layer.rotary.Magnitude(), 1) << "cos and sin are not magnified";
    EXPECT_EQ(layer.residual, (HyperConnectionSpec{.streams = 4, .iterations = 20, .eps = 1e-6}));
    const MoeSpec& moe = *layer.moe();
    EXPECT_EQ(moe.router.experts, 256);
    EXPECT_EQ(moe.router.top_k, 6);
    EXPECT_EQ(moe.router.groups, 1);
    EXPECT_EQ(moe.router.scoring, RouterScoring::kSqrtSoftplus);
    EXPECT_EQ(moe.router.method, i < 3 ? RouterMethod::kTokenTable : RouterMethod::kNoAuxTc);
    EXPECT_TRUE(moe.router.normalise);
    EXPECT_EQ(moe.router.scaling_factor, 1.5);
    EXPECT_EQ(moe.width, 2048);
    EXPECT_EQ(moe.shared_width, 2048);
    EXPECT_EQ(moe.limit, 10);
    EXPECT_EQ(moe.shared_limit, 10);
    EXPECT_TRUE(moe.limits_gate);
  }
  EXPECT_EQ(Attention(c.mtp_layer).ratio, 0);
  EXPECT_EQ(c.mtp_layer.moe()->router.method, RouterMethod::kNoAuxTc);
  EXPECT_EQ(c.quantization.block_rows, 128);
}

TEST(DeepSeekV4ConfigTest, WithADSparkDrafterThereAreNoMtpModules) {
  json config = V4Flash();
  config["compress_ratios"].push_back(0);
  config["compress_ratios"].push_back(0);
  config["dspark_block_size"] = 5;
  config["dspark_markov_rank"] = 64;
  config["dspark_noise_token_id"] = 129279;
  config["dspark_target_layer_ids"] = {40, 41, 42};
  const ModelConfig c = ParseV4(config);
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_EQ(c.dspark, (DSparkSpec{.stages = 3,
                                  .block_size = 5,
                                  .markov_rank = 64,
                                  .noise_token = 129279,
                                  .taps = {40, 41, 42}}));
  EXPECT_EQ(c.layer(45), c.mtp_layer) << "of a stage";
  for (const json& taps : {json{41, 42, 43}, json{40, 40, 41}, json{42, 41, 40}}) {
    config["dspark_target_layer_ids"] = taps;
    EXPECT_THAT(ErrorOf([&] { ParseV4(config); }),
                HasSubstr("a rising list of layers, 0 to 42, is needed"));
  }
  config["dspark_target_layer_ids"] = {40, 41, 42};
  config["compress_ratios"].erase(config["compress_ratios"].size() - 1);
  config["compress_ratios"].erase(config["compress_ratios"].size() - 1);
  EXPECT_EQ(ParseV4(config).dspark->stages, 1);
  config["compress_ratios"].erase(config["compress_ratios"].size() - 1);
  EXPECT_THAT(ErrorOf([&] { ParseV4(config); }),
              HasSubstr("with \"dspark_block_size\" a 0 for each stage has to follow"));
}

TEST(DeepSeekV4ConfigTest, ModulesNeedNoRatiosAndWithoutIndexedLayersThereIsNoIndexer) {
  json config = V4Flash();
  config["num_hidden_layers"] = 2;
  config["compress_ratios"] = {0, 128};
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"}) config.erase(key);
  const ModelConfig c = ParseV4(config);
  EXPECT_EQ(Attention(c.layer(1)).ratio, 128);
  EXPECT_EQ(Attention(c.layer(1)).index_heads, 0);
}

TEST(DeepSeekV4ConfigTest, WhatIsNotSupportedIsNamed) {
  const auto error = [](const std::function<void(json&)>& change) {
    json config = V4Flash();
    change(config);
    return ErrorOf([&] { ParseV4(config); });
  };
  const auto with = [&](const char* key, json value) {
    return error([&](json& c) { c[key] = std::move(value); });
  };
  EXPECT_THAT(with("num_key_value_heads", 8),
              HasSubstr("deepseek_v4 has one, which all heads read"));
  EXPECT_THAT(with("qk_rope_head_dim", 63), HasSubstr("an even part of \"head_dim\", 512"));
  EXPECT_THAT(with("qk_rope_head_dim", 514), HasSubstr("an even part of \"head_dim\", 512"));
  EXPECT_THAT(with("o_groups", 7), HasSubstr("a divisor of \"num_attention_heads\", 64"));
  EXPECT_THAT(with("o_lora_rank", 24), HasSubstr("\"o_lora_rank\" is 24: a multiple of 16"));
  EXPECT_THAT(with("attention_bias", true), HasSubstr("deepseek_v4 has no biases"));
  EXPECT_THAT(with("compress_ratios", nullptr), HasSubstr("a ratio for each of the 43 layers"));
  EXPECT_THAT(with("compress_ratios", json::array({0, 4})), HasSubstr("each of the 43 layers"));
  EXPECT_THAT(error([](json& c) { c["compress_ratios"][7] = 8; }),
              HasSubstr("element 7 has to be 0, 4 or 128"));
  EXPECT_THAT(error([](json& c) { c["compress_ratios"][7] = "4"; }),
              HasSubstr("element 7 has to be 0, 4 or 128"));
  EXPECT_THAT(error([](json& c) { c["compress_ratios"][43] = 4; }),
              HasSubstr("element 43 has to be 0, as it is a draft module's"));
  EXPECT_THAT(with("num_nextn_predict_layers", 2),
              HasSubstr("an element for each of the 2 draft modules is needed"));
  EXPECT_THAT(with("index_head_dim", 32), HasSubstr("at least \"qk_rope_head_dim\", 64"));
  EXPECT_THAT(error([](json& c) { c.erase("index_topk"); }), HasSubstr("\"index_topk\""));
  EXPECT_THAT(error([](json& c) { c["rope_scaling"]["type"] = "linear"; }),
              HasSubstr("\"type\" of rope_scaling is \"linear\": \"yarn\" and "
                        "\"default\" are supported"));
  EXPECT_THAT(error([](json& c) { c["rope_scaling"]["mscale"] = 1.0; }),
              HasSubstr("\"mscale\" of rope_scaling is 1.0: deepseek_v4 has none"));
  EXPECT_THAT(error([](json& c) { c["rope_scaling"]["beta_fast"] = 0.5; }),
              HasSubstr("it may not be below \"beta_slow\", 1"));
  EXPECT_THAT(with("rope_scaling", "yarn"), HasSubstr("an object or null is needed"));
  EXPECT_THAT(with("scoring_func", "sigmoid"), HasSubstr("\"sqrtsoftplus\" is supported"));
  EXPECT_THAT(with("norm_topk_prob", false), HasSubstr("supported with true only"));
  EXPECT_THAT(with("num_experts_per_tok", 257), HasSubstr("at most \"n_routed_experts\", 256"));
  EXPECT_THAT(with("swiglu_limit", nullptr), HasSubstr("\"swiglu_limit\""));
  EXPECT_THAT(with("hc_mult", 1), HasSubstr("\"hc_mult\" is 1"));
  EXPECT_THAT(with("hc_sinkhorn_iters", 0), HasSubstr("\"hc_sinkhorn_iters\" is 0"));
  EXPECT_THAT(with("qk_norm", true), HasSubstr("\"qk_norm\" is true"));
}

TEST(DeepSeekV4DummyWeightsTest, AreStoredAsThePublishedOnes) {
  const auto source = MakeDummyWeights(ParseV4(V4Flash()), 7);
  const auto type_of = [&](const std::string& name, std::vector<int64_t> shape) {
    EXPECT_TRUE(source->Has(name)) << name;
    return source->Open({name, std::move(shape)})->stored_dtype();
  };
  EXPECT_EQ(type_of("embed.weight", {129280, 4096}), DType::kBF16);
  EXPECT_EQ(type_of("layers.0.ffn.gate.weight", {256, 4096}), DType::kBF16);
  EXPECT_EQ(type_of("layers.2.attn.compressor.wkv.weight", {1024, 4096}), DType::kBF16);
  EXPECT_EQ(type_of("layers.2.attn.indexer.weights_proj.weight", {64, 4096}), DType::kBF16);
  EXPECT_EQ(type_of("layers.2.attn.indexer.wq_b.weight", {8192, 1024}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.0.attn.wq_a.weight", {1024, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.0.attn.wq_b.weight", {32768, 1024}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.0.attn.wkv.weight", {512, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.0.attn.wo_a.weight", {8192, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.0.attn.wo_b.weight", {4096, 8192}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.9.ffn.shared_experts.w1.weight", {2048, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("layers.9.ffn.experts.255.w2.weight", {4096, 2048}), DType::kF4E2M1);
  EXPECT_EQ(type_of("mtp.0.e_proj.weight", {4096, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("mtp.0.h_proj.weight", {4096, 4096}), DType::kF8E4M3);
  EXPECT_EQ(type_of("mtp.0.ffn.experts.0.w1.weight", {2048, 4096}), DType::kF4E2M1);

  json plain = V4Flash();
  plain.erase("quantization_config");
  EXPECT_EQ(MakeDummyWeights(ParseV4(plain), 7)
                ->Open({"layers.0.attn.wkv.weight", {512, 4096}})
                ->stored_dtype(),
            DType::kBF16);
}

TEST(DeepSeekV4DummyWeightsTest, CodesAndScalesGiveTheValues) {
  const auto source = MakeDummyWeights(ParseV4(V4Flash()), 7);
  constexpr int64_t kRows = 160;
  constexpr int64_t kCols = 192;  // ragged blocks both ways
  for (const char* name : {"layers.5.attn.wkv.weight", "layers.5.ffn.experts.3.w1.weight"}) {
    const auto tensor = source->Open({name, {kRows, kCols}});
    std::vector<float> values(kRows * kCols);
    tensor->ReadRows(0, kRows, values.data());
    const bool fp4 = tensor->stored_dtype() == DType::kF4E2M1;
    std::vector<uint8_t> codes(kRows * kCols);
    tensor->ReadCodes(0, kRows, codes.data());
    std::vector<uint8_t> exponents(kRows * kCols / kFp4Group);
    if (fp4) tensor->ReadGroupScales(0, kRows, exponents.data());
    double squares = 0;
    float largest = 0;
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      if (fp4) {
        const int code = codes[i / 2] >> (i % 2 * 4) & 15;
        ASSERT_EQ(values[i], Float4E2M1ToFloat(static_cast<uint8_t>(code)) *
                                 std::ldexp(1.0F, exponents[i / kFp4Group] - 127));
      } else {
        const BlockScales& scales = *tensor->block_scales();
        ASSERT_EQ(scales.values.size(), 2U * 2U);
        const int64_t block = i / kCols / 128 * 2 + i % kCols / 128;
        ASSERT_EQ(values[i], Float8E4M3ToFloat(codes[i]) * scales.values[block]);
      }
      ASSERT_EQ(values[i], RoundToBFloat16(values[i]));
      squares += double{values[i]} * values[i];
      largest = std::max(largest, std::fabs(values[i]));
    }
    // Uniform: the greatest is sqrt(3) times the standard deviation, but for the rounding.
    EXPECT_NEAR(std::sqrt(squares / (kRows * kCols) * kCols), 1, 0.05) << name;
    EXPECT_NEAR(largest * std::sqrt(kCols), std::sqrt(3.0), 0.25) << name;
    std::vector<float> row(kCols);
    tensor->ReadRows(kRows - 1, 1, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), values.end() - kCols));
  }
}

TEST(DeepSeekV4DummyWeightsTest, TokensHaveDifferentExperts) {
  const auto source = MakeDummyWeights(ParseV4(V4Flash()), 7);
  const auto table = source->Open(
      {.name = "layers.0.ffn.gate.tid2eid", .shape = {500, 6}, .holds_integers = true});
  std::vector<float> values(500 * 6);
  table->ReadRows(0, 500, values.data());
  std::set<float> first;
  for (size_t row = 0; row < 500; ++row) {
    const std::set<float> experts(values.begin() + row * 6, values.begin() + row * 6 + 6);
    EXPECT_EQ(experts.size(), 6U);
    EXPECT_GE(*experts.begin(), 0);
    EXPECT_LT(*experts.rbegin(), 256);
    first.insert(values[row * 6]);
  }
  EXPECT_GT(first.size(), 150U);
}

// What transformers 5 writes in the place of the published keys.
TEST(DeepSeekV4ConfigTest, RopeParametersAreRopeScaling) {
  const ModelConfig published = ParseV4(V4Flash());
  json flat = V4Flash();
  flat["rope_parameters"] = flat["rope_scaling"];
  flat["rope_parameters"]["rope_type"] = "yarn";
  flat["rope_parameters"]["attention_factor"] = 1.0;
  flat["rope_parameters"]["rope_theta"] = 10000;
  flat.erase("rope_scaling");
  flat.erase("rope_theta");
  EXPECT_EQ(ParseV4(flat).layers, published.layers);

  json nested = V4Flash();
  nested["rope_parameters"] = {{"main", {{"rope_type", "default"}}},
                               {"compress", flat["rope_parameters"]}};
  nested["rope_parameters"]["main"]["rope_theta"] = 10000.0;
  nested["rope_parameters"]["main"]["partial_rotary_factor"] = 0.125;
  nested["rope_parameters"]["compress"]["rope_theta"] = 160000.0;
  nested["rope_parameters"]["compress"]["partial_rotary_factor"] = 0.125;
  nested["partial_rotary_factor"] = 0.125;
  for (const char* key :
       {"rope_scaling", "rope_theta", "compress_rope_theta", "qk_rope_head_dim"}) {
    nested.erase(key);
  }
  EXPECT_EQ(ParseV4(nested).layers, published.layers);
  nested["rope_parameters"]["main"]["partial_rotary_factor"] = 0.25;
  EXPECT_THAT(ErrorOf([&] { ParseV4(nested); }),
              HasSubstr("\"partial_rotary_factor\" of rope_parameters.main is 0.25: of "
                        "\"head_dim\", 512, \"qk_rope_head_dim\", 64, are rotated"));
  nested["rope_parameters"]["main"].erase("partial_rotary_factor");
  nested["rope_parameters"]["main"]["factor"] = 4;
  EXPECT_EQ(ParseV4(nested).layers, published.layers) << "a factor beside \"default\" is none";
  nested["rope_parameters"].erase("compress");
  EXPECT_THAT(ErrorOf([&] { ParseV4(nested); }),
              HasSubstr("\"compress\" of rope_parameters is missing"));
}

TEST(DeepSeekV4ConfigTest, LayersByTypeAreLayersByRatio) {
  const ModelConfig published = ParseV4(V4Flash());
  json config = V4Flash();
  json types = json::array();
  json mlps = json::array();
  for (int i = 0; i < 43; ++i) {
    const int ratio = config["compress_ratios"][i];
    types.push_back(ratio == 0   ? "sliding_attention"
                    : ratio == 4 ? "compressed_sparse_attention"
                                 : "heavily_compressed_attention");
    mlps.push_back(i < 3 ? "hash_moe" : "moe");
  }
  config["layer_types"] = types;
  config["mlp_layer_types"] = mlps;
  config["compress_rates"] = {{"compressed_sparse_attention", 4},
                              {"heavily_compressed_attention", 128}};
  EXPECT_EQ(ParseV4(config).layers, published.layers);
  json other = config;
  other.erase("compress_ratios");
  other.erase("num_hash_layers");
  EXPECT_EQ(ParseV4(other).layers, published.layers);
  other = config;
  other["layer_types"][2] = "sliding_attention";
  EXPECT_THAT(ErrorOf([&] { ParseV4(other); }),
              HasSubstr("it does not say what \"compress_ratios\" says"));
  other = config;
  other["mlp_layer_types"][3] = "hash_moe";
  EXPECT_THAT(ErrorOf([&] { ParseV4(other); }), HasSubstr("\"num_hash_layers\" is 3"));
}

TEST(DeepSeekV4ConfigTest, KeysThatChangeTheComputationAreFollowedOrRefused) {
  json config = V4Flash();
  config["rope_scaling"]["truncate"] = false;
  EXPECT_FALSE(ParseV4(config).layer(2).rotary.yarn->truncate);
  const auto with = [](const char* key, json value) {
    json changed = V4Flash();
    changed[key] = std::move(value);
    return ErrorOf([&] { ParseV4(changed); });
  };
  EXPECT_THAT(with("partial_rotary_factor", 0.5), HasSubstr("\"partial_rotary_factor\" is 0.5"));
  EXPECT_THAT(with("index_topk_freq", 4), HasSubstr("\"index_topk_freq\" is 4"));
  EXPECT_THAT(with("index_topk_pattern", "FFS"), HasSubstr("\"index_topk_pattern\""));
  EXPECT_THAT(with("compress_rate_csa", 8),
              HasSubstr("\"compress_rate_csa\" is 8: 4 is supported"));
  EXPECT_THAT(with("compress_rate_hca", 64), HasSubstr("\"compress_rate_hca\" is 64: 128 is"));
  EXPECT_THAT(with("compress_rates", {{"heavily_compressed_attention", 64}}),
              HasSubstr("\"heavily_compressed_attention\" of compress_rates is 64"));
  EXPECT_EQ(with("compress_rate_csa", 4), "nothing was thrown");
  EXPECT_EQ(with("partial_rotary_factor", 0.125), "nothing was thrown");
}

}  // namespace
}  // namespace outrider
