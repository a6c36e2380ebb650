// Parses arbitrary bytes as a config.json and, after a NUL byte, a generation_config.json. What is
// accepted must be consistent, so that code behind it can rely on it.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/checkpoint/model_config.h"

namespace {

void CheckConfig(const outrider::ModelConfig& c) {
  OUTRIDER_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.num_hidden_layers > 0);
  OUTRIDER_CHECK(c.num_attention_heads > 0 && c.kv_lora_rank > 0 && c.q_lora_rank >= 0);
  OUTRIDER_CHECK(c.qk_rope_head_dim > 0 && c.qk_rope_head_dim % 2 == 0);
  OUTRIDER_CHECK(c.qk_nope_head_dim > 0 && c.v_head_dim > 0 && c.intermediate_size > 0);
  OUTRIDER_CHECK(std::isfinite(c.SoftmaxScale()) && c.SoftmaxScale() > 0);
  OUTRIDER_CHECK(std::isfinite(c.RopeMagnitude()) && c.RopeMagnitude() > 0);
  OUTRIDER_CHECK(c.first_k_dense_replace >= 0 && c.first_k_dense_replace <= c.num_hidden_layers);
  for (const int32_t id : c.eos_token_ids) OUTRIDER_CHECK(id >= 0 && id < c.vocab_size);
  if (c.n_routed_experts == 0) return;
  OUTRIDER_CHECK(c.moe_intermediate_size > 0 && c.n_shared_experts >= 0);
  OUTRIDER_CHECK(c.n_group > 0 && c.n_routed_experts % c.n_group == 0);
  OUTRIDER_CHECK(c.topk_group > 0 && c.topk_group <= c.n_group);
  OUTRIDER_CHECK(c.num_experts_per_tok > 0 &&
                 c.num_experts_per_tok <= c.n_routed_experts / c.n_group * c.topk_group);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view config(reinterpret_cast<const char*>(data), size);
  std::optional<std::string_view> generation;
  if (const size_t nul = config.find('\0'); nul != std::string_view::npos) {
    generation = config.substr(nul + 1);
    config = config.substr(0, nul);
  }
  try {
    CheckConfig(outrider::ParseModelConfig(config, generation, "config.json"));
  } catch (const outrider::Error& error) {
    OUTRIDER_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
