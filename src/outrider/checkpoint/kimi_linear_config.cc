// The layers of Kimi-Linear (arXiv:2510.26692): Kimi Delta Attention, and in every fourth layer
// latent attention without rotation; experts behind the first dense layers.
#include <nlohmann/json.hpp>
#include <set>

#include "outrider/base/error.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/hybrid_config.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

/// Numbers of layers, from 1, as the config counts them.
std::set<int64_t> LayerNumbers(ConfigReader& linear, std::string_view key, int64_t num_layers) {
  std::set<int64_t> numbers;
  const json* list = linear.Find(key);
  bool good = list != nullptr && list->is_array();
  for (size_t i = 0; good && i < list->size(); ++i) {
    const json& number = (*list)[i];
    good = number.is_number_integer() && number >= 1 && number <= num_layers &&
           numbers.insert(number.get<int64_t>()).second;
  }
  if (!good) {
    linear.Refuse(key,
                  fmt::format("a list of different layers from 1 to {} is needed", num_layers));
    numbers.clear();
  }
  return numbers;
}

/// Which layers have linear attention, from 0.
std::set<int64_t> ListedLinearLayers(const FamilyConfig& from, ConfigReader& linear,
                                     int64_t num_layers) {
  const size_t before = from.problems.size();
  const std::set<int64_t> kda = LayerNumbers(linear, "kda_layers", num_layers);
  const std::set<int64_t> full = LayerNumbers(linear, "full_attn_layers", num_layers);
  std::set<int64_t> layers;
  for (int64_t i = 0; i < num_layers && from.problems.size() == before; ++i) {
    if (kda.contains(i + 1) == full.contains(i + 1)) {
      linear.Refuse("kda_layers",
                    fmt::format("layer {} has to be in it or in \"full_attn_layers\", in one of "
                                "them",
                                i + 1));
    } else if (kda.contains(i + 1)) {
      layers.insert(i);
    }
  }
  return layers;
}

MoeSpec ParseKimiExperts(ConfigReader& text) {
  MoeSpec moe;
  moe.router.experts =
      text.Integer(SpellingOf(text, {"num_experts", "num_local_experts"}), 1, 65536);
  moe.router.top_k =
      text.Integer(SpellingOf(text, {"num_experts_per_token", "num_experts_per_tok"}), 1, 65536);
  text.Choice("moe_router_activation_func", {"sigmoid"}, "\"sigmoid\" is supported", "sigmoid");
  moe.router.normalise =
      text.Boolean(SpellingOf(text, {"moe_renormalize", "norm_topk_prob"}), true);
  text.Boolean("use_grouped_topk", true);  // one group is no group
  ParseHybridExperts(text, SpellingOf(text, {"num_expert_group", "n_group"}), moe);
  if (text.Integer("moe_layer_freq", 1, 4096, 1) != 1) {
    text.Refuse("moe_layer_freq", "every layer behind the dense ones has experts; 1");
  }
  return moe;
}

}  // namespace

void ParseKimiLinearLayers(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  ConfigReader& text = from.text;
  static const json kNothing = json::object();
  const json* object = text.Find("linear_attn_config");
  if (object == nullptr || !object->is_object()) {
    text.Refuse("linear_attn_config", "the layers of linear attention are needed, as an object");
    object = &kNothing;
  }
  ConfigReader linear(*object, "linear_attn_config", from.problems);
  KdaSpec kda = ParseKda(linear, "num_heads", "head_dim");
  kda.decay_rank = kda.gate_rank = kda.head_dim;
  const std::set<int64_t> linear_layers = ListedLinearLayers(from, linear, num_layers);
  const MlaSpec mla = ParseHybridLatentAttention(text);
  text.Integer("num_key_value_heads", 1, 65536, mla.heads);
  if (!text.Boolean("mla_use_nope", true)) {
    text.Refuse("mla_use_nope", "kimi_linear is supported with true only");
  }
  // Nothing is rotated, whatever these say.
  for (const std::string_view key : {"head_dim", "rope_theta"}) text.Find(key);
  FindRope(text);
  text.Choice("hidden_act", {"silu"}, "\"silu\" is supported", "silu");
  const DenseMlpSpec dense = {.width = text.Integer("intermediate_size", 1, kMostOfADimension)};
  const int64_t first_experts = text.Integer("first_k_dense_replace", 0, num_layers, 1);
  const MoeSpec moe = ParseKimiExperts(text);
  for (const std::string_view key : {"layer_types", "mlp_layer_types"}) text.Find(key);
  if (config.num_nextn_predict_layers > 0) {
    text.Refuse("num_nextn_predict_layers", "kimi_linear has no MTP modules; 0");
  }
  RefuseForeignKeys(text, config.max_position_embeddings);

  RotarySpec rotary;
  rotary.dims = mla.rope;
  rotary.turns = false;
  for (int64_t i = 0; i < num_layers; ++i) {
    LayerSpec& layer =
        config.layers.emplace_back(LayerSpec{.attention = mla, .rotary = rotary, .mlp = dense});
    if (linear_layers.contains(i)) layer.attention = kda;
    if (i >= first_experts) layer.mlp = moe;
  }
  CheckHybridLayers(linear, "kda_layers", config);
}

}  // namespace outrider
