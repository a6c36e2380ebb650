// A directory with the config.json of a Step-3.5 with three MTP modules, as small as the format
// allows: for dummy weights.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/networks/model_directory.h"

namespace outrider {

struct SmallStepSizes {
  int hidden = 32;
  int heads = 2;  // of full layers; with a window twice as many
  int kv_heads = 1;
  int head_dim = 16;
  int width = 32;  // of the MLP; experts have half
  int experts = 4;
};
/// Sizes that the GPU's kernels take and `ranks` ranks can share.
constexpr SmallStepSizes GpuStepSizes(int ranks) {
  return {.hidden = 64,
          .heads = 3 * std::max(2, ranks),
          .kv_heads = std::max(2, ranks),
          .head_dim = 128,
          .width = std::max(64, 16 * ranks),
          .experts = 8};
}
inline constexpr SmallStepSizes kGpuStepSizes = GpuStepSizes(1);

class SmallStepModel : public ModelDirectory {
 public:
  /// One full layer and two with a window, the last of them with experts.
  explicit SmallStepModel(int32_t vocab_size, int32_t window = 20,
                          const SmallStepSizes& sizes = {}) {
    const std::string full = "full_attention";
    const std::string sliding = "sliding_attention";
    const nlohmann::json config = {
        {"architectures", {"Step3p5ForCausalLM"}},
        {"model_type", "step3p5"},
        {"vocab_size", vocab_size},
        {"hidden_size", sizes.hidden},
        {"intermediate_size", sizes.width},
        {"num_hidden_layers", 3},
        {"num_nextn_predict_layers", 3},
        {"num_attention_heads", sizes.heads},
        {"num_attention_groups", sizes.kv_heads},
        {"head_dim", sizes.head_dim},
        {"attention_other_setting",
         {{"attention_type", sliding},
          {"num_attention_heads", 2 * sizes.heads},
          {"num_attention_groups", sizes.kv_heads},
          {"head_dim", sizes.head_dim},
          {"true_head_dim", sizes.head_dim}}},
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
        {"moe_num_experts", sizes.experts},
        {"moe_top_k", 2},
        {"moe_intermediate_size", sizes.width / 2},
        {"share_expert_dim", sizes.width / 2},
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
    WriteConfig(config);
  }
};

}  // namespace outrider
