// The config of Step-3.5-Flash, as it is published, and what is refused of it.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/checkpoint/model_config.h"
#include "tests/checkpoint/checkpoint_writer.h"

namespace outrider {
namespace {

using nlohmann::json;
using outrider::test_checkpoints::ErrorOf;
using ::testing::HasSubstr;

/// 45 layers and three modules.
json Step35Flash() {
  json types = json::array();
  json theta = json::array();
  json rotary = json::array();
  json limits = json::array();
  json shared = json::array();
  std::string experts;
  for (int i = 0; i < 48; ++i) {
    const bool full = i % 4 == 0 && i < 45;
    types.push_back(full ? "full_attention" : "sliding_attention");
    theta.push_back(full ? 5000000.0 : 10000.0);
    rotary.push_back(full ? 0.5 : 1.0);
    limits.push_back(i == 43 || i == 44 ? json(7.0) : json(nullptr));
    shared.push_back(i == 44 ? 16.0 : 0.0);
    if (i >= 3 && i < 45) experts += (experts.empty() ? "" : ",") + std::to_string(i);
  }
  return {{"architectures", {"Step3p5ForCausalLM"}},
          {"model_type", "step3p5"},
          {"hidden_size", 4096},
          {"intermediate_size", 11264},
          {"vocab_size", 128896},
          {"num_hidden_layers", 45},
          {"num_nextn_predict_layers", 3},
          {"num_attention_heads", 64},
          {"num_attention_groups", 8},
          {"head_dim", 128},
          {"attention_other_setting",
           {{"attention_type", "sliding_attention"},
            {"num_attention_heads", 96},
            {"num_attention_groups", 8},
            {"head_dim", 128},
            {"true_head_dim", 128}}},
          {"layer_types", types},
          {"sliding_window", 512},
          {"rope_theta", theta},
          {"partial_rotary_factors", rotary},
          {"rope_scaling",
           {{"rope_type", "llama3"},
            {"factor", 2.0},
            {"original_max_position_embeddings", 131072},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 32.0}}},
          {"yarn_only_types", {"full_attention"}},
          {"max_position_embeddings", 262144},
          {"max_seq_len", 262144},
          {"use_qk_norm", true},
          {"use_head_wise_attn_gate", true},
          {"sink", false},
          {"use_rope_layers", json::array()},
          {"moe_layers_enum", experts},
          {"moe_num_experts", 288},
          {"moe_top_k", 8},
          {"moe_intermediate_size", 1280},
          {"share_expert_dim", 1280},
          {"moe_router_activation", "sigmoid"},
          {"moe_router_scaling_factor", 3.0},
          {"norm_expert_weight", true},
          {"use_moe_router_bias", true},
          {"need_fp32_gate", true},
          {"swiglu_limits", limits},
          {"swiglu_limits_shared", shared},
          {"zero_centered", true},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", {1, 2}}};
}

ModelConfig ParseStep(const json& config) {
  return ParseModelConfig(config.dump(), std::nullopt, "config.json");
}

const GqaSpec& Gqa(const LayerSpec& layer) { return std::get<GqaSpec>(layer.attention); }

TEST(Step3p5ConfigTest, AsPublished) {
  const ModelConfig c = ParseStep(Step35Flash());
  EXPECT_EQ(c.family, ModelFamily::kStep3p5);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  ASSERT_EQ(c.num_hidden_layers(), 45);
  EXPECT_EQ(c.num_nextn_predict_layers, 3);
  for (int64_t i = 0; i < 45; ++i) {
    const LayerSpec& layer = c.layer(i);
    const bool full = i % 4 == 0;
    EXPECT_EQ(Gqa(layer).heads, full ? 64 : 96);
    EXPECT_EQ(Gqa(layer).kv_heads, 8);
    EXPECT_EQ(Gqa(layer).window, full ? 0 : 512);
    EXPECT_DOUBLE_EQ(Gqa(layer).softmax_scale, 1 / std::sqrt(128.0));
    EXPECT_EQ(layer.rotary.dims, full ? 64 : 128);
    EXPECT_EQ(layer.rotary.theta, full ? 5e6 : 1e4);
    EXPECT_FALSE(layer.rotary.interleaved);
    EXPECT_EQ(layer.rotary.llama3.has_value(), full);
    EXPECT_EQ(layer.moe() != nullptr, i >= 3);
    if (i < 3) {
      EXPECT_EQ(layer.dense()->width, 11264);
      EXPECT_EQ(layer.dense()->limit, kNoActivationLimit);
      continue;
    }
    EXPECT_EQ(layer.moe()->limit, i >= 43 ? 7 : kNoActivationLimit);
    EXPECT_EQ(layer.moe()->shared_limit, i == 44 ? 16 : kNoActivationLimit);
    EXPECT_EQ(layer.moe()->router.experts, 288);
    EXPECT_EQ(layer.moe()->router.top_k, 8);
    EXPECT_EQ(layer.moe()->router.scaling_factor, 3);
    EXPECT_EQ(layer.moe()->shared_width, 1280);
  }
  EXPECT_EQ(Gqa(c.mtp_layer).window, 512);
  EXPECT_EQ(c.mtp_layer.dense()->width, 11264);
}

TEST(Step3p5ConfigTest, OtherSpellings) {
  json config = Step35Flash();
  config["moe_layers_enum"] = {3, 5};
  config["rope_theta"] = 7000;
  config["rms_norm_eps"] = 1e-6;
  config["swiglu_limits"] = nullptr;
  config.erase("yarn_only_types");
  const ModelConfig c = ParseStep(config);
  EXPECT_EQ(c.layer(4).moe(), nullptr);
  EXPECT_NE(c.layer(5).moe(), nullptr);
  EXPECT_EQ(c.layer(7).rotary.theta, 7000);
  EXPECT_TRUE(c.layer(7).rotary.llama3.has_value());
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
}

TEST(Step3p5ConfigTest, WhatIsNotSupportedIsNamed) {
  const auto error = [](const std::function<void(json&)>& change) {
    json config = Step35Flash();
    change(config);
    return ErrorOf([&] { ParseStep(config); });
  };
  for (const char* key :
       {"use_qk_norm", "use_head_wise_attn_gate", "use_moe_router_bias", "zero_centered"}) {
    EXPECT_THAT(error([&](json& c) { c[key] = false; }),
                HasSubstr(std::string(key) + "\" is false: step3p5 is supported with true only"));
  }
  EXPECT_THAT(error([](json& c) { c["sink"] = true; }), HasSubstr("sinks are not supported"));
  EXPECT_THAT(error([](json& c) { c["use_rope_layers"] = {true, false}; }),
              HasSubstr("layers without rotation"));
  EXPECT_THAT(error([](json& c) { c["layer_types"].erase(47); }),
              HasSubstr("each of the 45 layers and 3 MTP modules"));
  EXPECT_THAT(error([](json& c) { c["layer_types"][5] = "linear"; }), HasSubstr("element 5"));
  EXPECT_THAT(error([](json& c) { c["partial_rotary_factors"][5] = 0.01; }),
              HasSubstr("element 5 has to leave an even number of \"head_dim\", 128"));
  EXPECT_THAT(error([](json& c) { c["swiglu_limits"][9] = -1; }), HasSubstr("element 9"));
  EXPECT_THAT(error([](json& c) { c["moe_layers_enum"] = "3,x"; }), HasSubstr("moe_layers_enum"));
  EXPECT_THAT(error([](json& c) { c["moe_top_k"] = 289; }), HasSubstr("moe_num_experts"));
  EXPECT_THAT(error([](json& c) { c["rope_scaling"]["rope_type"] = "yarn"; }),
              HasSubstr("\"llama3\" is supported"));
  EXPECT_THAT(error([](json& c) { c["attention_other_setting"]["num_attention_heads"] = 90; }),
              HasSubstr("a multiple of \"num_attention_groups\", 8"));
  EXPECT_THAT(error([](json& c) { c["layer_types"][46] = "full_attention"; }),
              HasSubstr("MTP modules have to be alike"));
  // Keys of other networks are refused as everywhere.
  EXPECT_THAT(error([](json& c) { c["index_topk"] = 4; }), HasSubstr("index_topk"));
  EXPECT_THAT(error([](json& c) { c["attention_bias"] = true; }), HasSubstr("attention_bias"));
  EXPECT_THAT(error([](json& c) { c.erase("layer_types"); }), HasSubstr("layer_types"));
}

// How transformers 5 writes it: flat, or an object for each type of layer.
TEST(Step3p5ConfigTest, RopeParametersAreRopeScaling) {
  const ModelConfig published = ParseStep(Step35Flash());
  json flat = Step35Flash();
  flat["rope_parameters"] = flat["rope_scaling"];
  flat["rope_parameters"]["rope_theta"] = flat["rope_theta"];
  flat.erase("rope_scaling");
  flat.erase("rope_theta");
  EXPECT_EQ(ParseStep(flat).layers, published.layers);
  EXPECT_EQ(ParseStep(flat).mtp_layer, published.mtp_layer);

  json nested = Step35Flash();
  nested["rope_parameters"] = {{"full_attention", nested["rope_scaling"]},
                               {"sliding_attention", {{"rope_type", "default"}}}};
  nested["rope_parameters"]["full_attention"]["rope_theta"] = 5000000.0;
  nested["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5;
  nested["rope_parameters"]["sliding_attention"]["rope_theta"] = 10000.0;
  for (const char* key :
       {"rope_scaling", "rope_theta", "yarn_only_types", "partial_rotary_factors"}) {
    nested.erase(key);
  }
  EXPECT_EQ(ParseStep(nested).layers, published.layers);
  EXPECT_EQ(ParseStep(nested).mtp_layer, published.mtp_layer);

  json both = Step35Flash();
  both["rope_parameters"] = both["rope_scaling"];
  EXPECT_EQ(ParseStep(both).layers, published.layers);
  both["rope_parameters"]["factor"] = 4;
  EXPECT_THAT(
      ErrorOf([&] { ParseStep(both); }),
      HasSubstr("\"rope_parameters\" is an object: it does not say what \"rope_scaling\" says"));
  nested["rope_parameters"].erase("sliding_attention");
  EXPECT_THAT(ErrorOf([&] { ParseStep(nested); }),
              HasSubstr("\"sliding_attention\" of rope_parameters is missing"));
}

TEST(Step3p5ConfigTest, UnknownKeysOfRopeScalingAreRefused) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    json config = Step35Flash();
    config[key] = config["rope_scaling"];
    config[key]["low_frequency_factor"] = 2;
    if (std::string(key) == "rope_parameters") config.erase("rope_scaling");
    EXPECT_THAT(ErrorOf([&] { ParseStep(config); }),
                HasSubstr(std::string("\"low_frequency_factor\" of ") + key +
                          " is 2: it is no key of llama3; leave it out"));
  }
  json config = Step35Flash();
  config["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(ErrorOf([&] { ParseStep(config); }), HasSubstr("\"partial_rotary_factor\" is 0.5"));
}

// Published files hold modules whatever num_nextn_predict_layers says.
TEST(Step3p5ConfigTest, ModulesThatAreNotDeclaredAreWhatTheListsSay) {
  const ModelConfig published = ParseStep(Step35Flash());
  for (const json& declared : {json(0), json(nullptr)}) {
    json config = Step35Flash();
    config["num_nextn_predict_layers"] = declared;
    EXPECT_EQ(ParseStep(config).mtp_layer, published.mtp_layer);
    for (const char* key :
         {"layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits"}) {
      config[key].erase(config[key].begin() + 45, config[key].end());
    }
    EXPECT_FALSE(std::holds_alternative<GqaSpec>(ParseStep(config).mtp_layer.attention));
  }
}

}  // namespace
}  // namespace outrider
