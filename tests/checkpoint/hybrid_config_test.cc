// The configs of Kimi-Linear and Ling-3.0, as they are published, and what is refused of them.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/checkpoint/hybrid_names.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/checkpoint_writer.h"

namespace outrider {
namespace {

using nlohmann::json;
using outrider::test_checkpoints::ErrorOf;
using ::testing::HasSubstr;

json KimiLinear48B() {
  json linear = json::array();
  json full = json::array();
  for (int i = 1; i <= 27; ++i) (i % 4 == 0 || i == 27 ? full : linear).push_back(i);
  return {{"architectures", {"KimiLinearForCausalLM"}},
          {"model_type", "kimi_linear"},
          {"bos_token_id", 163584},
          {"eos_token_id", 163586},
          {"pad_token_id", 163839},
          {"vocab_size", 163840},
          {"hidden_size", 2304},
          {"head_dim", 72},
          {"intermediate_size", 9216},
          {"num_hidden_layers", 27},
          {"linear_attn_config",
           {{"kda_layers", linear},
            {"full_attn_layers", full},
            {"num_heads", 32},
            {"head_dim", 128},
            {"short_conv_kernel_size", 4}}},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"mla_use_nope", true},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"first_k_dense_replace", 1},
          {"moe_layer_freq", 1},
          {"moe_intermediate_size", 1024},
          {"num_experts", 256},
          {"num_experts_per_token", 8},
          {"num_expert_group", 1},
          {"topk_group", 1},
          {"use_grouped_topk", true},
          {"num_shared_experts", 1},
          {"moe_router_activation_func", "sigmoid"},
          {"moe_renormalize", true},
          {"routed_scaling_factor", 2.446},
          {"num_nextn_predict_layers", 0},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"model_max_length", 1048576},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}

json Ling3Flash() {
  json limits(42, nullptr);
  limits[40] = 10;
  limits[41] = 7.5;
  json shared(42, 0);
  shared[41] = 10;
  return {{"architectures", {"BailingMoeV3ForCausalLM"}},
          {"model_type", "bailing_hybrid"},
          {"eos_token_id", 156895},
          {"pad_token_id", 156892},
          {"vocab_size", 157184},
          {"hidden_size", 2560},
          {"intermediate_size", 6144},
          {"num_hidden_layers", 42},
          {"layer_group_size", 6},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"head_dim", 128},
          {"short_conv_kernel_size", 4},
          {"no_kda_lora", true},
          {"kda_safe_gate", true},
          {"kda_lower_bound", -5},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"rope_theta", 6000000},
          {"partial_rotary_factor", 0.5},
          {"gated_attention_proj_granularity_type", "head_wise"},
          {"first_k_dense_replace", 2},
          {"moe_intermediate_size", 768},
          {"num_experts", 512},
          {"num_experts_per_tok", 8},
          {"n_group", 8},
          {"topk_group", 4},
          {"num_shared_experts", 1},
          {"score_function", "sigmoid"},
          {"router_dtype", "fp32"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"expert_swiglu_limit_list", limits},
          {"share_expert_swiglu_limit_list", shared},
          {"num_nextn_predict_layers", 1},
          {"mtp_use_kda", false},
          {"rms_norm_eps", 1e-6},
          {"max_position_embeddings", 262144},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}

ModelConfig ParseHybrid(const json& config) {
  return ParseModelConfig(config.dump(), std::nullopt, "config.json");
}

std::string HybridRefusalOf(json config, const std::function<void(json&)>& change) {
  change(config);
  return ErrorOf([&] { ParseHybrid(config); });
}

bool HasLinearAttention(const LayerSpec& layer) {
  return std::holds_alternative<KdaSpec>(layer.attention);
}

TEST(HybridConfigTest, KimiLinear) {
  const ModelConfig c = ParseHybrid(KimiLinear48B());
  EXPECT_EQ(c.family, ModelFamily::kKimiLinear);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  ASSERT_EQ(c.num_hidden_layers(), 27);
  for (int64_t i = 0; i < 27; ++i) {
    EXPECT_EQ(HasLinearAttention(c.layer(i)), !((i + 1) % 4 == 0 || i == 26)) << i;
    EXPECT_EQ(c.layer(i).moe() != nullptr, i >= 1);
  }
  const KdaSpec kda = {.heads = 32,
                       .head_dim = 128,
                       .conv = 4,
                       .decay_bound = std::nullopt,
                       .decay_rank = 128,
                       .gate_rank = 128};
  EXPECT_EQ(std::get<KdaSpec>(c.layer(0).attention), kda);
  const auto& mla = std::get<MlaSpec>(c.first_cached_layer().attention);
  EXPECT_EQ(&c.first_cached_layer(), &c.layer(3));
  EXPECT_EQ(mla.q_lora, 0);
  EXPECT_FALSE(mla.gates_heads);
  EXPECT_DOUBLE_EQ(mla.softmax_scale, 1 / std::sqrt(192.0));
  EXPECT_FALSE(c.layer(3).rotary.turns);
  EXPECT_EQ(c.layer(3).rotary.dims, 64);
  const MoeSpec& moe = *c.layer(26).moe();
  EXPECT_EQ(moe.router.experts, 256);
  EXPECT_EQ(moe.router.top_k, 8);
  EXPECT_EQ(moe.router.groups, 1);
  EXPECT_DOUBLE_EQ(moe.router.scaling_factor, 2.446);
  EXPECT_EQ(moe.shared_width, 1024);
}

TEST(HybridConfigTest, KimiLinearInTransformersWords) {
  json config = KimiLinear48B();
  const auto rename = [&](const char* from, const char* to) {
    config[to] = config[from];
    config.erase(from);
  };
  rename("num_experts", "num_local_experts");
  rename("num_experts_per_token", "num_experts_per_tok");
  rename("num_expert_group", "n_group");
  rename("moe_renormalize", "norm_topk_prob");
  rename("model_max_length", "max_position_embeddings");
  const ModelConfig renamed = ParseHybrid(config);
  const ModelConfig published = ParseHybrid(KimiLinear48B());
  EXPECT_EQ(renamed.layers, published.layers);
  EXPECT_EQ(renamed.max_position_embeddings, published.max_position_embeddings);
}

TEST(HybridConfigTest, Ling) {
  const ModelConfig c = ParseHybrid(Ling3Flash());
  EXPECT_EQ(c.family, ModelFamily::kBailingHybrid);
  ASSERT_EQ(c.num_hidden_layers(), 42);
  for (int64_t i = 0; i < 42; ++i) {
    EXPECT_EQ(HasLinearAttention(c.layer(i)), (i + 1) % 6 != 0) << i;
    EXPECT_EQ(c.layer(i).moe() != nullptr, i >= 2);
  }
  const KdaSpec kda = {.heads = 32, .head_dim = 128, .conv = 4, .decay_bound = -5};
  EXPECT_EQ(std::get<KdaSpec>(c.layer(0).attention), kda);
  EXPECT_TRUE(std::get<MlaSpec>(c.layer(5).attention).gates_heads);
  EXPECT_TRUE(c.layer(5).rotary.turns);
  EXPECT_TRUE(c.layer(5).rotary.interleaved);
  EXPECT_EQ(c.layer(5).rotary.dims, 64);  // all of qk_rope_head_dim
  EXPECT_DOUBLE_EQ(c.layer(5).rotary.theta, 6e6);
  const MoeSpec& moe = *c.layer(39).moe();
  EXPECT_EQ(moe.router.groups, 8);
  EXPECT_EQ(moe.router.top_groups, 4);
  EXPECT_EQ(moe.limit, kNoActivationLimit);
  EXPECT_EQ(moe.shared_limit, kNoActivationLimit);
  EXPECT_DOUBLE_EQ(c.layer(40).moe()->limit, 10);
  EXPECT_DOUBLE_EQ(c.layer(41).moe()->limit, 7.5);
  EXPECT_DOUBLE_EQ(c.layer(41).moe()->shared_limit, 10);
}

// Longer contexts by the recipe of the models' cards: rotated numbers are multiplied by YaRN's
// magnitude, and the softmax scale changes where the config says mscale_all_dim.
TEST(HybridConfigTest, LingsYarn) {
  json config = Ling3Flash();
  const ModelConfig plain = ParseHybrid(config);
  EXPECT_FALSE(plain.layer(5).rotary.yarn);
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 131072}};
  ModelConfig c = ParseHybrid(config);
  const YarnScaling yarn = {.factor = 2, .original_max_position_embeddings = 131072};
  EXPECT_EQ(c.layer(5).rotary.yarn, yarn);
  EXPECT_EQ(c.mtp_layer.rotary.yarn, yarn);
  EXPECT_DOUBLE_EQ(c.layer(5).rotary.Magnitude(), 0.1 * std::log(2.0) + 1);
  EXPECT_EQ(std::get<MlaSpec>(c.layer(5).attention), std::get<MlaSpec>(plain.layer(5).attention));
  config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"] = 1;
  c = ParseHybrid(config);
  EXPECT_DOUBLE_EQ(c.layer(5).rotary.Magnitude(), 1);
  const double magnitude = 0.1 * std::log(2.0) + 1;
  for (const LayerSpec& layer : {c.layer(5), c.mtp_layer}) {
    EXPECT_DOUBLE_EQ(std::get<MlaSpec>(layer.attention).softmax_scale,
                     magnitude * magnitude / std::sqrt(192.0));
  }
}

// Random weights are then of the size that the published files have.
TEST(HybridConfigTest, LingsExpertsMayBeMxfp4) {
  json config = Ling3Flash();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"weight_block_size", {128, 128}},
                                   {"scale_fmt", "ue8m0"},
                                   {"modules_to_not_convert", {"lm_head", "b_proj"}},
                                   {"routed_experts_quant_method", "mxfp4"},
                                   {"routed_experts_group_size", 32}};
  const ModelConfig c = ParseHybrid(config);
  EXPECT_EQ(c.quantization.format, StoredFormat::kFp8Block);
  EXPECT_EQ(c.quantization.experts_format, StoredFormat::kMxfp4);
  const auto source = MakeDummyWeights(c, 1);
  const auto type_of = [&](const char* name, int64_t rows, int64_t cols) {
    return source->Open({name, {rows, cols}})->stored_dtype();
  };
  EXPECT_EQ(type_of("model.layers.3.mlp.experts.7.up_proj.weight", 768, 2560), DType::kF4E2M1);
  EXPECT_EQ(type_of("model.layers.42.mlp.experts.7.up_proj.weight", 768, 2560), DType::kF4E2M1);
  EXPECT_EQ(type_of("model.layers.3.mlp.shared_experts.up_proj.weight", 768, 2560), DType::kF8E4M3);
  EXPECT_EQ(type_of("model.layers.3.attention.f_proj.weight", 4096, 2560), DType::kF8E4M3);
  EXPECT_EQ(type_of("model.layers.3.attention.b_proj.weight", 32, 2560), DType::kBF16);
  EXPECT_EQ(type_of("model.layers.5.attention.kv_b_proj.weight", 8192, 512), DType::kF8E4M3);
  EXPECT_THAT(HybridRefusalOf(config,
                              [](json& refused) {
                                refused["quantization_config"]["routed_experts_quant_method"] =
                                    "nvfp4";
                              }),
              HasSubstr("\"mxfp4\" is supported"));
  EXPECT_THAT(HybridRefusalOf(config,
                              [](json& refused) {
                                refused["quantization_config"]["routed_experts_group_size"] = 16;
                              }),
              HasSubstr("32 is supported"));
}

// The module has latent attention and experts, and limits of its own where the lists go on.
TEST(HybridConfigTest, LingsModule) {
  json config = Ling3Flash();
  const LayerSpec without = ParseHybrid(config).layer(42);
  EXPECT_EQ(std::get<MlaSpec>(without.attention),
            std::get<MlaSpec>(ParseHybrid(config).layer(41).attention));
  EXPECT_EQ(without.moe()->limit, kNoActivationLimit);
  EXPECT_EQ(without.moe()->shared_limit, kNoActivationLimit);
  config["expert_swiglu_limit_list"].push_back(6);
  config["share_expert_swiglu_limit_list"].push_back(0);
  const ModelConfig c = ParseHybrid(config);
  EXPECT_DOUBLE_EQ(c.mtp_layer.moe()->limit, 6);
  EXPECT_EQ(c.mtp_layer.moe()->shared_limit, kNoActivationLimit);
  EXPECT_DOUBLE_EQ(c.layer(41).moe()->limit, 7.5);
}

// Layers behind the last whole group have latent attention; a list says it outright.
TEST(HybridConfigTest, LingsLayers) {
  json config = Ling3Flash();
  config["num_hidden_layers"] = 45;
  config["expert_swiglu_limit_list"] = config["share_expert_swiglu_limit_list"] = nullptr;
  ModelConfig c = ParseHybrid(config);
  for (int64_t i = 0; i < 45; ++i)
    EXPECT_EQ(HasLinearAttention(c.layer(i)), (i + 1) % 6 != 0 && i < 42);
  config["layer_types"] = json(45, "linear_attention");
  config["layer_types"][7] = "full_attention";
  c = ParseHybrid(config);
  for (int64_t i = 0; i < 45; ++i) EXPECT_EQ(HasLinearAttention(c.layer(i)), i != 7);
}

TEST(HybridConfigTest, WhatIsRefused) {
  const std::pair<std::function<void(json&)>, const char*> of_kimi[] = {
      {[](json& c) { c.erase("linear_attn_config"); }, "\"linear_attn_config\""},
      {[](json& c) { c["linear_attn_config"]["kda_layers"].push_back(4); },
       "layer 4 has to be in it or in \"full_attn_layers\", in one of them"},
      {[](json& c) { c["linear_attn_config"]["kda_layers"].erase(0); }, "layer 1 has to be in it"},
      {[](json& c) { c["linear_attn_config"]["kda_layers"].push_back(28); },
       "a list of different layers from 1 to 27 is needed"},
      {[](json& c) { c["linear_attn_config"]["kda_layers"].push_back(1); }, "different layers"},
      {[](json& c) {
         for (int i = 1; i <= 27; ++i) {
           if (i % 4 == 0 || i == 27) c["linear_attn_config"]["kda_layers"].push_back(i);
         }
         c["linear_attn_config"]["full_attn_layers"] = json::array();
       },
       "27 of 27 are linear"},
      {[](json& c) { c["mla_use_nope"] = false; }, "\"mla_use_nope\""},
      {[](json& c) { c["moe_router_activation_func"] = "softmax"; }, "\"sigmoid\" is supported"},
      {[](json& c) { c["num_experts_per_token"] = 300; }, "there are 256 experts"},
      {[](json& c) { c["num_nextn_predict_layers"] = 1; }, "has no MTP modules"},
      {[](json& c) { c["linear_attn_config"]["short_conv_kernel_size"] = 99; },
       "\"short_conv_kernel_size\""}};
  for (const auto& [change, message] : of_kimi) {
    EXPECT_THAT(HybridRefusalOf(KimiLinear48B(), change), HasSubstr(message));
  }
  const std::pair<std::function<void(json&)>, const char*> of_ling[] = {
      // Ling 2.5 has the same type and another linear attention.
      {[](json& c) { c["architectures"] = {"BailingMoeV2_5ForCausalLM"}; },
       "is known with [\"BailingMoeV3ForCausalLM\"]"},
      {[](json& c) { c.erase("architectures"); }, "\"architectures\""},
      {[](json& c) { c["layer_group_size"] = 1; }, "0 of 42 are linear"},
      {[](json& c) { c["kda_lower_bound"] = 5; }, "\"kda_lower_bound\""},
      {[](json& c) { c["kda_allow_neg_eigval"] = true; }, "\"kda_allow_neg_eigval\""},
      {[](json& c) { c["gated_attention_proj_granularity_type"] = "element_wise"; },
       "\"head_wise\" is supported"},
      {[](json& c) { c["expert_swiglu_limit_list"] = {1, 2}; },
       "a limit or null for each of the 42 layers"},
      {[](json& c) { c["share_expert_swiglu_limit_list"][3] = -1; }, "a limit or null"},
      {[](json& c) { c["rope_scaling"] = {{"type", "yarn"}, {"factor", 2}}; },
       "\"original_max_position_embeddings\" of rope_scaling"},
      {[](json& c) { c["rope_scaling"] = {{"type", "llama3"}, {"factor", 2}}; },
       "\"yarn\" and \"default\" are supported"},
      {[](json& c) { c["n_group"] = 3; }, "it must divide the 512 experts"},
      {[](json& c) { c["topk_group"] = 1, c["num_experts_per_tok"] = 100; },
       "the chosen groups hold 64 experts"},
      {[](json& c) { c["mtp_use_kda"] = true; }, "\"mtp_use_kda\""},
      {[](json& c) { c["num_nextn_predict_layers"] = 2; }, "known with one MTP module"},
      {[](json& c) { c["layer_types"] = {"linear_attention"}; }, "42 entries"},
      {[](json& c) { c["sliding_window"] = 128; }, "\"sliding_window\""}};
  for (const auto& [change, message] : of_ling) {
    EXPECT_THAT(HybridRefusalOf(Ling3Flash(), change), HasSubstr(message));
  }
}

TEST(HybridConfigTest, TensorNames) {
  const ModelConfig kimi = ParseHybrid(KimiLinear48B());
  const std::pair<const char*, bool> of_kimi[] = {
      {"model.embed_tokens.weight", true},
      {"model.layers.0.self_attn.f_a_proj.weight", true},
      {"model.layers.0.self_attn.f_proj.weight", false},
      {"model.layers.0.self_attn.q_conv1d.weight", true},
      {"model.layers.3.self_attn.q_conv1d.weight", false},
      {"model.layers.3.self_attn.kv_b_proj.weight", true},
      {"model.layers.3.self_attn.g_proj.weight", false},
      {"model.layers.0.mlp.gate_proj.weight", true},
      {"model.layers.1.mlp.gate_proj.weight", false},
      {"model.layers.1.block_sparse_moe.experts.255.w2.weight", true},
      {"model.layers.1.block_sparse_moe.experts.256.w2.weight", false},
      {"model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", true},
      {"model.layers.27.input_layernorm.weight", false}};
  for (const auto& [name, has] : of_kimi) EXPECT_EQ(HasHybridTensor(kimi, name), has) << name;
  const ModelConfig ling = ParseHybrid(Ling3Flash());
  const std::pair<const char*, bool> of_ling[] = {
      {"model.word_embeddings.weight", true},
      {"model.layers.0.attention.f_proj.weight", true},
      {"model.layers.0.attention.f_a_proj.weight", false},
      {"model.layers.0.attention.A_log", true},
      {"model.layers.5.attention.g_proj.weight", true},
      {"model.layers.5.attention.dense.weight", true},
      {"model.layers.5.attention.o_proj.weight", false},
      {"model.layers.2.mlp.gate.expert_bias", true},
      {"model.layers.2.mlp.experts.511.down_proj.weight", true},
      {"model.layers.42.eh_proj.weight", true},
      {"model.layers.42.enorm.weight", true},
      {"model.layers.42.hnorm.weight", true},
      {"model.layers.42.final_layernorm.weight", true},
      {"model.layers.42.attention.g_proj.weight", true},
      {"model.layers.42.attention.A_log", false},
      {"model.layers.42.mlp.experts.511.down_proj.weight", true},
      {"model.layers.41.final_layernorm.weight", false},
      {"model.layers.43.eh_proj.weight", false}};
  for (const auto& [name, has] : of_ling) EXPECT_EQ(HasHybridTensor(ling, name), has) << name;
}

}  // namespace
}  // namespace outrider
