// The layer of an EAGLE-3 drafter, with DeepSeek's or with Llama's attention, and what else its
// config says.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/checkpoint/eagle3_spec.h"
#include "outrider/checkpoint/family_parsers.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kMostTaps = 16;

/// "eagle_aux_hidden_state_layer_ids", at the top or in "eagle_config"; empty: it is not there.
std::vector<int64_t> AuxLayerIds(ConfigReader& text, std::vector<std::string>& problems) {
  constexpr std::string_view kKey = "eagle_aux_hidden_state_layer_ids";
  static const json kNothing = json::object();
  const json* nested = text.Find("eagle_config");
  if (nested != nullptr && !nested->is_object()) {
    text.Refuse("eagle_config", "an object or null is needed");
    nested = nullptr;
  }
  ConfigReader eagle(nested == nullptr ? kNothing : *nested, "eagle_config", problems);
  ConfigReader& reader = text.Find(kKey) != nullptr ? text : eagle;
  const json* ids = reader.Find(kKey);
  if (ids == nullptr) return {};
  const auto is_layer = [](const json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= 4096;
  };
  if (!ids->is_array() || ids->empty() || ids->size() > kMostTaps ||
      !std::ranges::all_of(*ids, is_layer)) {
    reader.Refuse(kKey, fmt::format("a list of 1 to {} layers is needed", kMostTaps));
    return {};
  }
  return ids->get<std::vector<int64_t>>();
}

/// All but the layer.
void ParseEagle3(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  if (num_layers != 1) {
    from.text.Refuse("num_hidden_layers", "EAGLE-3 drafters of one layer are supported");
  }
  Eagle3Spec& eagle = config.eagle3.emplace();
  eagle.aux_layer_ids = AuxLayerIds(from.text, from.problems);
  if (!eagle.aux_layer_ids.empty()) eagle.num_taps = std::ssize(eagle.aux_layer_ids);
  if (from.text.Integer("num_aux_hidden_states", 1, kMostTaps, eagle.num_taps) != eagle.num_taps) {
    from.text.Refuse("num_aux_hidden_states",
                     fmt::format("the drafter reads {} layers", eagle.num_taps));
  }
  eagle.target_hidden_size =
      from.text.Integer("target_hidden_size", 1, kMostOfADimension, config.hidden_size);
  eagle.draft_vocab_size =
      from.text.Integer("draft_vocab_size", 1, config.vocab_size, config.vocab_size);
  eagle.norms_taps =
      from.text.Boolean("fc_norm", false) || from.text.Boolean("use_aux_norm", false);
  eagle.norms_residual = from.text.Boolean("norm_before_residual", false);
  eagle.norms_output = from.text.Boolean("norm_output", false);
  if (from.text.Boolean("bias", false)) from.text.Refuse("bias", "fc has no bias");
  if (config.tie_word_embeddings) {
    from.text.Refuse("tie_word_embeddings", "a drafter has a head of its own");
  }
}

GqaSpec ParseLlamaAttention(ConfigReader& text, int64_t hidden) {
  constexpr int64_t kMostHeads = 65536;
  GqaSpec attention;
  attention.heads = text.Integer("num_attention_heads", 1, kMostHeads);
  attention.kv_heads = text.Integer("num_key_value_heads", 1, kMostHeads, attention.heads);
  attention.head_dim =
      text.Integer("head_dim", 1, kMostHeads, std::max<int64_t>(1, hidden / attention.heads));
  if (attention.head_dim % 2 != 0) {
    text.Refuse("head_dim", "an even number is needed, as pairs are rotated");
  }
  if (attention.heads % attention.kv_heads != 0) {
    text.Refuse("num_attention_heads", fmt::format("a multiple of \"num_key_value_heads\", {}, is "
                                                   "needed",
                                                   attention.kv_heads));
  }
  attention.softmax_scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  return attention;
}

RotarySpec ParseLlamaRotary(const FamilyConfig& from, int64_t head_dim) {
  RotarySpec rotary = {.dims = head_dim, .interleaved = false};
  const auto [key, object] = FindRope(from.text);
  static const json kNothing = json::object();
  ConfigReader rope(object == nullptr ? kNothing : *object, key, from.problems);
  ConfigReader& theta = rope.Find("rope_theta") != nullptr ? rope : from.text;
  rotary.theta = theta.Number("rope_theta", 1, 1e12, rotary.theta);
  const std::string type = RopeType(rope, "llama3");
  if (type == "llama3") rotary.llama3 = ReadLlama3(rope);
  if (!type.empty()) RefuseForeignRopeKeys(rope, "llama3");
  return rotary;
}

}  // namespace

void ParseEagle3Layer(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  ParseEagle3(from, num_layers, config);
  ParseDeepSeekDraftLayer(from, config);
}

void ParseLlamaEagle3Layer(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  ParseEagle3(from, num_layers, config);
  ConfigReader& text = from.text;
  const GqaSpec attention = ParseLlamaAttention(text, config.hidden_size);
  const RotarySpec rotary = ParseLlamaRotary(from, attention.head_dim);
  text.Choice("hidden_act", {"silu"}, "\"silu\" is supported");
  if (text.Boolean("mlp_bias", false)) text.Refuse("mlp_bias", "MLPs have no biases");
  const DenseMlpSpec mlp = {.width = text.Integer("intermediate_size", 1, kMostOfADimension)};
  RefuseForeignKeys(text, config.max_position_embeddings);
  config.layers = {{.attention = attention, .rotary = rotary, .mlp = mlp}};
}

std::vector<int32_t> Eagle3Taps(const Eagle3Spec& spec, int64_t target_layers,
                                std::span<const int32_t> entered, std::string_view where) {
  std::vector<int64_t> ids = spec.aux_layer_ids;
  if (ids.empty()) ids = {2, target_layers / 2, target_layers - 3};
  if (!entered.empty()) ids.assign(entered.begin(), entered.end());
  const bool left = entered.empty() && ids.front() == 1;
  std::vector<int32_t> taps;
  taps.reserve(ids.size());
  for (const int64_t id : ids) taps.push_back(static_cast<int32_t>(left ? id : id - 1));
  const bool rises = std::ranges::adjacent_find(taps, std::ranges::greater_equal()) == taps.end();
  if (std::ssize(taps) != spec.num_taps || !rises || taps.front() < 0 ||
      taps.back() >= target_layers) {
    throw InvalidArgument(
        "{}: the drafter would read the target at the layers [{}]: {} are needed, rising, from {} "
        "to {}, as the target has {} layers; name them with eagle_aux_hidden_state_layer_ids of "
        "--speculative-config",
        where, fmt::join(ids, ", "), spec.num_taps, left ? 0 : 1,
        left ? target_layers - 1 : target_layers, target_layers);
  }
  return taps;
}

}  // namespace outrider
