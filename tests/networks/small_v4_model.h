// A directory with the config.json of a DeepSeek-V4 with an MTP module or a DSpark drafter, as
// small as the format allows: for dummy weights, where speed matters and sense does not.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/networks/model_directory.h"

namespace outrider {

class SmallV4Model : public ModelDirectory {
 public:
  /// Layers of all kinds. The window is not a multiple of any compression. heads: each is a group.
  explicit SmallV4Model(int32_t vocab_size, bool dspark = false, int32_t heads = 2) {
    nlohmann::json config = {
        {"architectures", {"DeepseekV4ForCausalLM"}},
        {"model_type", "deepseek_v4"},
        {"vocab_size", vocab_size},
        {"hidden_size", 32},
        {"moe_intermediate_size", 16},
        {"num_hidden_layers", 4},
        {"num_attention_heads", heads},
        {"num_key_value_heads", 1},
        {"head_dim", 16},
        {"qk_rope_head_dim", 8},
        {"q_lora_rank", 16},
        {"o_groups", heads},
        {"o_lora_rank", 16},
        {"compress_ratios", {0, 4, 128, 4, 0}},
        {"num_hash_layers", 1},
        {"sliding_window", 22},
        {"index_n_heads", 2},
        {"index_head_dim", 8},
        {"index_topk", 5},
        {"n_routed_experts", 4},
        {"n_shared_experts", 1},
        {"num_experts_per_tok", 2},
        {"scoring_func", "sqrtsoftplus"},
        {"routed_scaling_factor", 1.5},
        {"swiglu_limit", 10.0},
        {"hc_mult", 2},
        {"hc_sinkhorn_iters", 3},
        {"hc_eps", 1e-6},
        {"rms_norm_eps", 1e-6},
        {"rope_theta", 1e4},
        {"compress_rope_theta", 1.6e5},
        {"rope_scaling",
         {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 256}}},
        {"max_position_embeddings", 1024},
        {"num_nextn_predict_layers", 1},
        {"torch_dtype", "bfloat16"},
        {"bos_token_id", 0},
        {"eos_token_id", {1, 2}}};
    if (dspark) {
      config["compress_ratios"] = {0, 4, 128, 4, 0, 0};
      config["dspark_block_size"] = 5;
      config["dspark_markov_rank"] = 8;
      config["dspark_noise_token_id"] = vocab_size - 1;
      config["dspark_target_layer_ids"] = {0, 2, 3};
    }
    WriteConfig(config);
  }
};

}  // namespace outrider
