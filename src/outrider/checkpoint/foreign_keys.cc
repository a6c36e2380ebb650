#include "outrider/checkpoint/foreign_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using nlohmann::json;

struct ForeignKey {
  std::string_view key;
  std::string_view neutral;  // JSON of the value that changes nothing, beside null
};

constexpr auto kForeignKeys = std::to_array<ForeignKey>({
    // Attention to some of the keys only: DeepSeek-V3.2 and V4, chunked and linear attention.
    {"index_topk", "null"},
    {"index_topk_pattern", "null"},
    {"index_topk_freq", "1"},
    {"compress_ratios", "[]"},
    {"compress_rates", "[]"},
    {"compress_rate_csa", "null"},
    {"compress_rate_hca", "null"},
    {"attention_chunk_size", "null"},
    {"linear_attn_config", "null"},
    {"full_attention_interval", "1"},
    {"use_sliding_window", "false"},
    {"use_bidirectional_attention", "false"},
    {"is_causal", "true"},
    // Queries, keys and their scores.
    {"partial_rotary_factor", "1"},
    {"use_qk_norm", "false"},
    {"qk_norm", "false"},
    {"attention_bias", "false"},
    {"qk_layernorm", "false"},
    {"use_qk_layernorm", "false"},
    {"query_pre_attn_scalar", "null"},
    {"attention_multiplier", "null"},
    {"attn_logit_softcapping", "null"},
    {"attn_temperature_tuning", "false"},
    {"mla_scale_q_lora", "false"},
    {"mla_scale_kv_lora", "false"},
    {"use_attention_sinks", "false"},
    {"no_rope_layers", "[]"},
    {"no_rope_layer_interval", "null"},
    {"nope_layer_interval", "null"},
    // The residual stream and the logits.
    {"residual_multiplier", "1"},
    {"embedding_multiplier", "1"},
    {"lm_head_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"scale_emb", "1"},
    {"scale_depth", "null"},
    {"dim_model_base", "null"},
    {"scale_embedding", "false"},
    {"final_logit_softcapping", "null"},
    {"hc_mult", "1"},
    // MLPs and routers.
    {"swiglu_limit", "null"},
    {"swiglu_limits", "[]"},
    {"swiglu_alpha", "null"},
    {"num_hash_layers", "0"},
    {"zero_expert_num", "0"},
    {"router_logit_softcapping", "null"},
    {"moe_router_logit_softcapping", "null"},
    // How weights are stored.
    {"compression_config", "{}"},
});

bool IsFullAttention(const json& layer_types) {
  return layer_types.is_array() &&
         std::all_of(layer_types.begin(), layer_types.end(),
                     [](const json& type) { return type == "full_attention"; });
}

/// A window as long as the context is none, and some configs have one that they do not use.
bool IsUnusedWindow(const json& window, const json* use, int64_t max_position_embeddings) {
  return (use != nullptr && *use == false) || window == false ||
         (window.is_number() &&
          window.get<double>() >= static_cast<double>(max_position_embeddings));
}

}  // namespace

void RefuseForeignKeys(ConfigReader& reader, int64_t max_position_embeddings) {
  // What the family's parser has read is not foreign.
  const std::vector<std::string> unread = reader.UnreadKeys();
  const auto find = [&](std::string_view key) {
    const json* value = reader.Find(key);  // noted also where it is missing: it may be misspelt
    return std::ranges::find(unread, key) == unread.end() ? nullptr : value;
  };
  for (const ForeignKey& foreign : kForeignKeys) {
    const json* value = find(foreign.key);
    if (value == nullptr || *value == json::parse(foreign.neutral)) continue;
    reader.Refuse(foreign.key,
                  fmt::format("networks with it are not supported; {}{} means none",
                              foreign.neutral == "null" ? "" : "null or ", foreign.neutral));
  }
  const json* types = find("layer_types");
  if (types != nullptr && !IsFullAttention(*types)) {
    reader.Refuse("layer_types", "only layers of \"full_attention\" are supported");
  }
  const json* window = find("sliding_window");
  if (window != nullptr &&
      !IsUnusedWindow(*window, reader.Find("use_sliding_window"), max_position_embeddings)) {
    reader.Refuse("sliding_window", "windows are not supported; null means none");
  }
}

}  // namespace outrider
