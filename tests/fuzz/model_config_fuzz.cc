// Parses arbitrary bytes as a config.json and, after a NUL byte, a generation_config.json. What is
// accepted must be consistent, so that code behind it can rely on it.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/checkpoint/model_config.h"

namespace {

void CheckAttention(const outrider::MlaSpec& a, const outrider::RotarySpec& rotary) {
  OUTRIDER_CHECK(a.heads > 0 && a.latent > 0 && a.q_lora >= 0);
  OUTRIDER_CHECK(a.rope > 0 && a.rope % 2 == 0 && a.nope > 0 && a.value > 0);
  OUTRIDER_CHECK(std::isfinite(a.softmax_scale) && a.softmax_scale > 0);
  OUTRIDER_CHECK(rotary.dims == a.rope);
}

void CheckAttention(const outrider::GqaSpec& a, const outrider::RotarySpec& rotary) {
  OUTRIDER_CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.window >= 0);
  OUTRIDER_CHECK(a.head_dim > 0 && a.softmax_scale > 0);
  OUTRIDER_CHECK(rotary.dims > 0 && rotary.dims % 2 == 0 && rotary.dims <= a.head_dim);
}

void CheckAttention(const outrider::KdaSpec& a, const outrider::RotarySpec& /*rotary*/) {
  OUTRIDER_CHECK(a.heads > 0 && a.head_dim > 0 && a.conv > 0);
}
void CheckAttention(const outrider::CompressedSpec& a, const outrider::RotarySpec& rotary) {
  OUTRIDER_CHECK(a.heads > 0 && a.head_dim > 0 && a.q_lora > 0 && a.window > 0);
  OUTRIDER_CHECK(a.output_groups > 0 && a.heads % a.output_groups == 0 && a.output_rank > 0);
  OUTRIDER_CHECK(a.ratio >= 0 && a.index_heads >= 0);
  OUTRIDER_CHECK(a.index_heads == 0 || (a.index_dim >= rotary.dims && a.index_top_k > 0));
  OUTRIDER_CHECK(std::isfinite(a.softmax_scale) && a.softmax_scale > 0);
  OUTRIDER_CHECK(rotary.dims > 0 && rotary.dims % 2 == 0 && rotary.dims <= a.head_dim);
}

void CheckLayer(const outrider::LayerSpec& layer) {
  std::visit([&](const auto& a) { CheckAttention(a, layer.rotary); }, layer.attention);
  const double magnitude = layer.rotary.Magnitude();
  OUTRIDER_CHECK(std::isfinite(magnitude) && magnitude > 0);
  if (layer.moe() == nullptr) {
    OUTRIDER_CHECK(layer.dense()->width > 0);
    return;
  }
  OUTRIDER_CHECK(layer.moe()->width > 0 && layer.moe()->shared_width >= 0);
  const outrider::RouterSpec& r = layer.moe()->router;
  OUTRIDER_CHECK(r.groups > 0 && r.experts % r.groups == 0);
  OUTRIDER_CHECK(r.top_groups > 0 && r.top_groups <= r.groups);
  OUTRIDER_CHECK(r.top_k > 0 && r.top_k <= r.experts / r.groups * r.top_groups);
}

void CheckConfig(const outrider::ModelConfig& c) {
  OUTRIDER_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && !c.layers.empty());
  for (const int32_t id : c.eos_token_ids) OUTRIDER_CHECK(id >= 0 && id < c.vocab_size);
  for (const outrider::LayerSpec& layer : c.layers) CheckLayer(layer);
  if (c.num_nextn_predict_layers > 0) CheckLayer(c.mtp_layer);
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
