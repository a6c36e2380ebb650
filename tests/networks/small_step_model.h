// A directory with the config.json of a Step-3.5 with three MTP modules, as small as the format
// allows: for dummy weights.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/temporary_directory.h"

namespace outrider {

class SmallStepModel {
 public:
  /// One full layer and two with a window, the last of them with experts.
  explicit SmallStepModel(int32_t vocab_size, int32_t window = 20) {
    const std::string full = "full_attention";
    const std::string sliding = "sliding_attention";
    const nlohmann::json config = {
        {"architectures", {"Step3p5ForCausalLM"}},
        {"model_type", "step3p5"},
        {"vocab_size", vocab_size},
        {"hidden_size", 32},
        {"intermediate_size", 32},
        {"num_hidden_layers", 3},
        {"num_nextn_predict_layers", 3},
        {"num_attention_heads", 2},
        {"num_attention_groups", 1},
        {"head_dim", 16},
        {"attention_other_setting",
         {{"attention_type", sliding},
          {"num_attention_heads", 4},
          {"num_attention_groups", 1},
          {"head_dim", 16},
          {"true_head_dim", 16}}},
        {"layer_types", {full, sliding, sliding, sliding, sliding, sliding}},
        {"sliding_window", window},
        {"rope_theta", {5e6, 1e4, 1e4, 1e4, 1e4, 1e4}},
        {"partial_rotary_factors", {0.5, 1, 1, 1, 1, 1}},
        {"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 2},
          {"original_max_position_embeddings", 256},
          {"low_freq_factor", 1},
          {"high_freq_factor", 32}}},
        {"yarn_only_types", {full}},
        {"max_position_embeddings", 4096},
        {"use_qk_norm", true},
        {"use_head_wise_attn_gate", true},
        {"sink", false},
        {"use_rope_layers", nlohmann::json::array()},
        {"moe_layers_enum", "2"},
        {"moe_num_experts", 4},
        {"moe_top_k", 2},
        {"moe_intermediate_size", 16},
        {"share_expert_dim", 16},
        {"moe_router_activation", "sigmoid"},
        {"moe_router_scaling_factor", 3.0},
        {"norm_expert_weight", true},
        {"use_moe_router_bias", true},
        {"need_fp32_gate", true},
        {"swiglu_limits", {0, 0, 7, 0, 0, 0}},
        {"swiglu_limits_shared", {0, 0, 16, 0, 0, 0}},
        {"zero_centered", true},
        {"torch_dtype", "bfloat16"},
        {"bos_token_id", 0},
        {"eos_token_id", {1, 2}}};
    std::ofstream(directory() / "config.json") << config;
  }

  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
