// The layers of Ling-3.0 (BailingMoeV3): groups of layers with Kimi Delta Attention, the last of
// each with latent attention whose heads are gated; experts behind the first dense layers, cut at
// limits of each layer.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/hybrid_config.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

/// By layer: whether its attention is linear.
std::vector<bool> LinearLayers(ConfigReader& text, int64_t num_layers) {
  std::vector<bool> linear(static_cast<size_t>(num_layers), true);
  const int64_t group = text.Integer("layer_group_size", 1, num_layers);
  // Layers behind the last whole group have latent attention, too.
  for (int64_t i = 0; i < num_layers; ++i) {
    linear[static_cast<size_t>(i)] = (i + 1) % group != 0 && i < num_layers / group * group;
  }
  const json* types = text.Find("layer_types");  // as transformers writes it
  if (types == nullptr) return linear;
  bool good = types->is_array() && std::cmp_equal(types->size(), num_layers);
  for (size_t i = 0; good && i < types->size(); ++i) {
    linear[i] = (*types)[i] == "linear_attention";
    good = linear[i] || (*types)[i] == "full_attention";
  }
  if (!good) {
    text.Refuse("layer_types",
                fmt::format("{} entries \"linear_attention\" or \"full_attention\" are needed",
                            num_layers));
  }
  return linear;
}

KdaSpec ParseLinearAttention(ConfigReader& text) {
  KdaSpec kda = ParseKda(text, "num_attention_heads", "head_dim");
  if (!text.Boolean("no_kda_lora", true)) kda.decay_rank = kda.gate_rank = kda.head_dim;
  if (text.Boolean("kda_safe_gate", true)) {
    kda.decay_bound = text.Number("kda_lower_bound", -100, -1e-3, -5.0);
  }
  if (text.Boolean("kda_allow_neg_eigval", false)) {
    text.Refuse("kda_allow_neg_eigval", "only false is supported");
  }
  return kda;
}

/// By layer, the MTP module's last: the limits of its activations. 0 means none, as null does, and
/// as a list does that ends before the module.
std::vector<double> Limits(ConfigReader& text, std::string_view key, int64_t num_layers) {
  std::vector<double> limits(static_cast<size_t>(num_layers) + 1, kNoActivationLimit);
  const json* list = text.Find(key);
  if (list == nullptr) return limits;
  bool good = list->is_array() && std::cmp_greater_equal(list->size(), num_layers);
  for (size_t i = 0; good && i < std::min(limits.size(), list->size()); ++i) {
    const json& limit = (*list)[i];
    if (limit.is_null()) continue;
    good = limit.is_number() && limit >= 0 && limit <= 1e30;
    if (good && limit > 0) limits[i] = limit.get<double>();
  }
  if (!good) {
    text.Refuse(key, fmt::format("a list with a limit or null for each of the {} layers is needed",
                                 num_layers));
  }
  return limits;
}

RotarySpec ParseRotary(ConfigReader& text, std::vector<std::string>& problems, int64_t dims) {
  const auto [key, object] = FindRope(text);
  static const json kNothing = json::object();
  ConfigReader rope(object != nullptr ? *object : kNothing, key, problems);
  RotarySpec rotary;
  rotary.dims = dims;
  ConfigReader& theta = rope.Find("rope_theta") != nullptr ? rope : text;
  rotary.theta = theta.Number("rope_theta", 1, 1e12);
  rotary.interleaved = text.Boolean("rope_interleave", true);
  // Latent attention rotates all of qk_rope_head_dim, whatever these say.
  for (const std::string_view ignored : {"partial_rotary_factor", "rotary_dim"}) {
    text.Find(ignored);
    rope.Find(ignored);
  }
  rotary.yarn = ParseYarn(rope, problems);
  RefuseForeignRopeKeys(rope, "YaRN");
  return rotary;
}

MoeSpec ParseLingExperts(ConfigReader& text) {
  MoeSpec moe;
  moe.router.experts =
      text.Integer(SpellingOf(text, {"num_experts", "num_local_experts"}), 1, 65536);
  moe.router.top_k = text.Integer("num_experts_per_tok", 1, 65536);
  text.Choice(SpellingOf(text, {"score_function", "scoring_func"}), {"sigmoid"},
              "\"sigmoid\" is supported", "sigmoid");
  text.Choice("router_dtype", {"fp32"}, "\"fp32\" is supported", "fp32");
  moe.router.normalise = text.Boolean("norm_topk_prob", true);
  if (!text.Boolean("moe_router_enable_expert_bias", true)) {
    text.Refuse("moe_router_enable_expert_bias", "only true is supported");
  }
  ParseHybridExperts(text, "n_group", moe);
  moe.shared_width =
      text.Integer("moe_shared_expert_intermediate_size", 0, kMostOfADimension, moe.shared_width);
  return moe;
}

}  // namespace

void ParseBailingHybridLayers(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  ConfigReader& text = from.text;
  if (config.architecture.empty()) {
    text.Refuse("architectures",
                "[\"BailingMoeV3ForCausalLM\"] is needed: older models of this type have another "
                "linear attention");
  }
  const KdaSpec kda = ParseLinearAttention(text);
  MlaSpec mla = ParseHybridLatentAttention(text);
  text.Integer("num_key_value_heads", 1, 65536, mla.heads);
  constexpr std::string_view kGates = "gated_attention_proj_granularity_type";
  mla.gates_heads =
      text.Choice(kGates, {"head_wise"}, "\"head_wise\" is supported", "head_wise") == "head_wise";
  const std::vector<bool> linear = LinearLayers(text, num_layers);
  const RotarySpec rotary = ParseRotary(text, from.problems, mla.rope);
  if (rotary.yarn) {
    const double magnitude = rotary.yarn->Magnitude(rotary.yarn->mscale_all_dim);
    mla.softmax_scale *= magnitude * magnitude;
  }
  text.Choice("hidden_act", {"silu"}, "\"silu\" is supported", "silu");
  for (const std::string_view key : {"use_bias", "use_qkv_bias"}) {
    if (text.Boolean(key, false)) text.Refuse(key, "only false is supported");
  }
  for (const std::string_view key : {"use_qk_norm", "qk_norm"}) text.Find(key);  // of other layers
  const int64_t dense_width = text.Integer("intermediate_size", 1, kMostOfADimension);
  const int64_t first_experts = text.Integer("first_k_dense_replace", 0, num_layers);
  const MoeSpec moe = ParseLingExperts(text);
  const std::vector<double> limits = Limits(text, "expert_swiglu_limit_list", num_layers);
  const std::vector<double> shared_limits =
      Limits(text, "share_expert_swiglu_limit_list", num_layers);
  if (text.Boolean("mtp_use_kda", false)) {
    text.Refuse("mtp_use_kda", "MTP modules with linear attention are not supported");
  }
  if (config.num_nextn_predict_layers > 1) {
    text.Refuse("num_nextn_predict_layers", "bailing_hybrid is known with one MTP module; 0 or 1");
  }
  RefuseForeignKeys(text, config.max_position_embeddings);

  const auto experts = [&](size_t i) {
    MoeSpec own = moe;
    own.limit = limits[i];
    own.shared_limit = shared_limits[i];
    return own;
  };
  for (size_t i = 0; i < linear.size(); ++i) {
    LayerSpec& layer = config.layers.emplace_back(
        LayerSpec{.attention = mla, .rotary = rotary, .mlp = DenseMlpSpec{.width = dense_width}});
    if (linear[i]) layer.attention = kda;
    if (std::cmp_greater_equal(i, first_experts)) layer.mlp = experts(i);
  }
  config.mtp_layer = {.attention = mla, .rotary = rotary, .mlp = experts(linear.size())};
  CheckHybridLayers(text, "layer_group_size", config);
}

}  // namespace outrider
