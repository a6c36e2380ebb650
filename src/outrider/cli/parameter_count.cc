#include "outrider/cli/parameter_count.h"

namespace outrider::cli {

namespace {

int64_t AttentionParameters(const ModelConfig& c) {
  const int64_t query_width = c.num_attention_heads * c.qk_head_dim();
  const int64_t queries =
      c.q_lora_rank > 0 ? c.q_lora_rank * (c.hidden_size + 1 + query_width)  // q_a, its norm, q_b
                        : c.hidden_size * query_width;
  const int64_t kv_a = c.hidden_size * (c.kv_lora_rank + c.qk_rope_head_dim) + c.kv_lora_rank;
  const int64_t kv_b = c.kv_lora_rank * c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim);
  const int64_t output = c.num_attention_heads * c.v_head_dim * c.hidden_size;
  const int64_t biases =
      c.attention_bias ? c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim + c.hidden_size : 0;
  return queries + kv_a + kv_b + output + biases;
}

/// Gate, up and down projections of one MLP.
int64_t MlpParameters(const ModelConfig& c, int64_t width) { return 3 * c.hidden_size * width; }

/// One decoder layer with `experts` routed experts counted; `is_moe` chooses the MLP.
int64_t LayerParameters(const ModelConfig& c, bool is_moe, int64_t experts) {
  const int64_t common = AttentionParameters(c) + 2 * c.hidden_size;  // two norms
  if (!is_moe) return common + MlpParameters(c, c.intermediate_size);
  const int64_t bias = c.router_method == RouterMethod::kNoAuxTc ? c.n_routed_experts : 0;
  return common + c.n_routed_experts * c.hidden_size + bias +
         experts * MlpParameters(c, c.moe_intermediate_size) +
         MlpParameters(c, c.n_shared_experts * c.moe_intermediate_size);
}

}  // namespace

ParameterCount CountParameters(const ModelConfig& config) {
  ParameterCount count;
  const int64_t table = config.vocab_size * config.hidden_size;
  const int64_t ends = (config.tie_word_embeddings ? table : 2 * table) + config.hidden_size;
  count.target = ends;
  count.target_active = ends;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool is_moe = config.IsMoeLayer(layer);
    count.target += LayerParameters(config, is_moe, config.n_routed_experts);
    count.target_active += LayerParameters(config, is_moe, config.num_experts_per_tok);
  }
  for (int64_t module = 0; module < config.num_nextn_predict_layers; ++module) {
    const bool is_moe = config.IsMoeLayer(config.num_hidden_layers + module);
    // enorm, hnorm and shared_head.norm; eh_proj.
    count.mtp += LayerParameters(config, is_moe, config.n_routed_experts) + 3 * config.hidden_size +
                 2 * config.hidden_size * config.hidden_size;
  }
  return count;
}

}  // namespace outrider::cli
