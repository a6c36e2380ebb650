// Configs of networks that mix linear and latent attention, as small as sense allows.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/networks/model_directory.h"

namespace outrider {

/// Ling-3.0 with everything that its format has: a group that is cut short, a latent for queries,
/// groups of experts, limits on the last layers, an MTP module.
inline nlohmann::json SmallLingConfig(int32_t vocab_size) {
  return {{"architectures", {"BailingMoeV3ForCausalLM"}},
          {"model_type", "bailing_hybrid"},
          {"vocab_size", vocab_size},
          {"hidden_size", 48},
          {"intermediate_size", 48},
          {"num_hidden_layers", 7},
          {"layer_group_size", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"head_dim", 16},
          {"short_conv_kernel_size", 4},
          {"no_kda_lora", true},
          {"kda_safe_gate", true},
          {"kda_lower_bound", -5},
          {"q_lora_rank", 24},
          {"kv_lora_rank", 32},
          {"qk_nope_head_dim", 16},
          {"qk_rope_head_dim", 8},
          {"v_head_dim", 16},
          {"rope_theta", 6000000},
          {"rope_interleave", true},
          {"partial_rotary_factor", 0.5},
          {"gated_attention_proj_granularity_type", "head_wise"},
          {"first_k_dense_replace", 1},
          {"moe_intermediate_size", 16},
          {"num_experts", 16},
          {"num_experts_per_tok", 4},
          {"n_group", 4},
          {"topk_group", 2},
          {"num_shared_experts", 1},
          {"score_function", "sigmoid"},
          {"router_dtype", "fp32"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"expert_swiglu_limit_list", {nullptr, 0, nullptr, nullptr, nullptr, 0.2, 0.3, 0.4}},
          {"share_expert_swiglu_limit_list", {nullptr, 0, nullptr, nullptr, 0.4, nullptr, 0.3}},
          {"num_nextn_predict_layers", 1},
          {"mtp_use_kda", false},
          {"rms_norm_eps", 1e-6},
          {"max_position_embeddings", 16384},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", 1}};
}

/// Kimi-Linear with a layer of latent attention among those of linear attention.
inline nlohmann::json SmallKimiConfig(int32_t vocab_size) {
  return {{"architectures", {"KimiLinearForCausalLM"}},
          {"model_type", "kimi_linear"},
          {"vocab_size", vocab_size},
          {"hidden_size", 48},
          {"head_dim", 12},
          {"intermediate_size", 48},
          {"num_hidden_layers", 5},
          {"linear_attn_config",
           {{"kda_layers", {1, 2, 3, 5}},
            {"full_attn_layers", {4}},
            {"num_heads", 4},
            {"head_dim", 16},
            {"short_conv_kernel_size", 4}}},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 32},
          {"qk_nope_head_dim", 16},
          {"qk_rope_head_dim", 8},
          {"v_head_dim", 16},
          {"mla_use_nope", true},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"first_k_dense_replace", 1},
          {"moe_layer_freq", 1},
          {"moe_intermediate_size", 16},
          {"num_experts", 16},
          {"num_experts_per_token", 4},
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
          {"model_max_length", 16384},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 2},
          {"eos_token_id", 1}};
}

/// With this number of heads of either kind.
inline nlohmann::json WithHeads(nlohmann::json config, int32_t heads) {
  config["num_attention_heads"] = config["num_key_value_heads"] = heads;
  if (config.contains("linear_attn_config")) config["linear_attn_config"]["num_heads"] = heads;
  return config;
}

/// The sizes of heads that a GPU's kernels are made for, of either family.
inline nlohmann::json WithGpuHeads(nlohmann::json config) {
  config.update({{"hidden_size", 256},
                 {"intermediate_size", 256},
                 {"kv_lora_rank", 512},
                 {"qk_nope_head_dim", 128},
                 {"qk_rope_head_dim", 64},
                 {"v_head_dim", 128},
                 {"moe_intermediate_size", 64}});
  if (config.contains("linear_attn_config")) {
    config["linear_attn_config"]["head_dim"] = 128;
  } else {
    config["head_dim"] = 128;
    config["q_lora_rank"] = 64;
  }
  return config;
}

/// Ling-3.0 for a GPU with its routed experts in MXFP4, all else in blocks of FP8, as
/// Ling-3.0-flash is published.
inline nlohmann::json SmallFp4LingConfig(int32_t vocab_size) {
  nlohmann::json config = WithGpuHeads(SmallLingConfig(vocab_size));
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"scale_fmt", "ue8m0"},
                                   {"weight_block_size", {128, 128}},
                                   {"modules_to_not_convert", {"lm_head", "b_proj"}},
                                   {"routed_experts_quant_method", "mxfp4"},
                                   {"routed_experts_group_size", 32}};
  return config;
}

}  // namespace outrider
