// The layers of Step-3.5: grouped-query attention over everything or over a window, dense MLPs or
// mixtures of experts, each by lists with an entry per layer.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/family_parsers.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr int64_t kMostHeads = 65536;
/// With an element for each layer and MTP module.
constexpr std::array<std::string_view, 5> kLists = {
    "layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared"};

class Step3p5Parser {
 public:
  Step3p5Parser(const FamilyConfig& from, int64_t num_layers, int64_t num_modules)
      : from_(from), num_layers_(num_layers), num_modules_(num_modules) {}

  void Parse(ModelConfig& config);

 private:
  ConfigReader& text() const { return from_.text; }

  /// Element `layer` of the list `key`, or its value if that is a number; null when the key or the
  /// element is null or missing.
  const json* ElementOf(std::string_view key, int64_t layer) const;
  /// A layer's element as a number; `fallback` without the key, and where an element is null.
  double NumberAt(std::string_view key, int64_t layer, double min, double max,
                  std::optional<double> fallback) const;
  void CheckLists() const;
  /// How many MTP modules the lists describe.
  int64_t ListedModules() const;
  void RequireTrue(std::string_view key) const;
  void ParseAttention();
  void ParseScaling();
  /// What a rope_scaling or rope_parameters object asks for.
  std::optional<Llama3Scaling> Scaling(ConfigReader& rope, bool type_needed) const;
  std::vector<std::string> ScaledTypes() const;
  /// Element `layer` of the list `key` of the config, or else `inner` of rope_parameters, for
  /// layers of this type.
  double RotationAt(std::string_view key, std::string_view inner, const std::string& type,
                    int64_t layer, double min, double max, std::optional<double> fallback) const;
  void ParseExperts();
  void ParseMoeLayers();
  LayerSpec Layer(int64_t index) const;

  const FamilyConfig& from_;
  int64_t num_layers_;
  int64_t num_modules_;
  GqaSpec full_;
  GqaSpec sliding_;
  std::map<std::string, const json*, std::less<>> rotations_;  // by type of layer
  std::map<std::string, std::optional<Llama3Scaling>, std::less<>> scaling_;
  int64_t dense_width_ = 0;
  MoeSpec moe_;
  std::set<int64_t> moe_layers_;
};

const json* Step3p5Parser::ElementOf(std::string_view key, int64_t layer) const {
  const json* list = text().Find(key);
  if (list != nullptr && list->is_number()) return list;  // one for all layers
  if (list == nullptr || !list->is_array() || layer >= static_cast<int64_t>(list->size())) {
    return nullptr;
  }
  const json& element = (*list)[static_cast<size_t>(layer)];
  return element.is_null() ? nullptr : &element;
}

double Step3p5Parser::NumberAt(std::string_view key, int64_t layer, double min, double max,
                               std::optional<double> fallback) const {
  const json* element = ElementOf(key, layer);
  if (element == nullptr && fallback) return *fallback;
  if (element != nullptr && element->is_number()) {
    const auto number = element->get<double>();
    if (number >= min && number <= max) return number;
  }
  text().Refuse(key, fmt::format("element {} has to be a number from {} to {}", layer, min, max));
  return min;
}

double Step3p5Parser::RotationAt(std::string_view key, std::string_view inner,
                                 const std::string& type, int64_t layer, double min, double max,
                                 std::optional<double> fallback) const {
  const auto rotation = rotations_.find(type);
  if (text().Find(key) != nullptr || rotation == rotations_.end() ||
      !rotation->second->contains(inner)) {
    return NumberAt(key, layer, min, max, fallback);
  }
  const json& value = (*rotation->second)[std::string(inner)];
  const json* number = &value;
  if (value.is_array() && std::cmp_less(layer, value.size())) {
    number = &value[static_cast<size_t>(layer)];
  }
  if (number->is_number() && number->get<double>() >= min && number->get<double>() <= max) {
    return number->get<double>();
  }
  text().Refuse("rope_parameters",
                fmt::format("its \"{}\" has to be a number from {} to {}", inner, min, max));
  return min;
}

void Step3p5Parser::CheckLists() const {
  const int64_t needed = num_layers_ + num_modules_;
  for (const std::string_view key : kLists) {
    const json* list = text().Find(key);
    if (list == nullptr || list->is_number()) continue;
    if (!list->is_array() || static_cast<int64_t>(list->size()) < needed) {
      text().Refuse(key, fmt::format("a list with an element for each of the {} layers and {} MTP "
                                     "modules is needed",
                                     num_layers_, num_modules_));
    }
  }
}

void Step3p5Parser::RequireTrue(std::string_view key) const {
  if (!text().Boolean(key)) text().Refuse(key, "step3p5 is supported with true only");
}

void Step3p5Parser::ParseAttention() {
  full_.heads = text().Integer("num_attention_heads", 1, kMostHeads);
  full_.kv_heads = text().Integer("num_attention_groups", 1, kMostHeads);
  full_.head_dim = text().Integer("head_dim", 2, kMostHeads);
  sliding_ = full_;
  sliding_.window = text().Integer("sliding_window", 1, INT32_MAX);
  constexpr std::string_view kOther = "attention_other_setting";
  const json* object = text().Find(kOther);
  if (object == nullptr || !object->is_object()) {
    text().Refuse(kOther, "the heads of sliding attention are needed, as an object");
    return;
  }
  ConfigReader other(*object, std::string(kOther), from_.problems);
  other.Choice("attention_type", {kSliding}, "\"sliding_attention\" is supported", kSliding);
  sliding_.heads = other.Integer("num_attention_heads", 1, kMostHeads);
  sliding_.kv_heads = other.Integer("num_attention_groups", 1, kMostHeads);
  for (const std::string_view key : {"head_dim", "true_head_dim"}) {
    if (other.Integer(key, 1, kMostHeads, full_.head_dim) != full_.head_dim) {
      other.Refuse(key, fmt::format("it has to be \"head_dim\", {}", full_.head_dim));
    }
  }
  if (full_.heads % full_.kv_heads != 0) {
    text().Refuse("num_attention_heads", fmt::format("a multiple of \"num_attention_groups\", {}, "
                                                     "is needed",
                                                     full_.kv_heads));
  }
  if (sliding_.heads % sliding_.kv_heads != 0) {
    other.Refuse("num_attention_heads", fmt::format("a multiple of \"num_attention_groups\", {}, "
                                                    "is needed",
                                                    sliding_.kv_heads));
  }
  for (GqaSpec* spec : {&full_, &sliding_}) {
    spec->softmax_scale = 1 / std::sqrt(static_cast<double>(spec->head_dim));
    spec->norms_heads = spec->gates_heads = true;
  }
  RequireTrue("use_qk_norm");
  RequireTrue("use_head_wise_attn_gate");
  if (text().Boolean("sink", false)) text().Refuse("sink", "sinks are not supported");
  const json* rope_layers = text().Find("use_rope_layers");
  if (rope_layers != nullptr && *rope_layers != json::array()) {
    text().Refuse("use_rope_layers", "layers without rotation are not supported; [] means none");
  }
}

void Step3p5Parser::ParseScaling() {
  const auto [key, object] = FindRope(text());
  if (object == nullptr) return;
  if (!object->contains(kFull) && !object->contains(kSliding)) {
    ConfigReader rope(*object, key, from_.problems);
    rotations_.emplace(kFull, object);  // perhaps with rope_theta
    rotations_.emplace(kSliding, object);
    const std::optional<Llama3Scaling> scaling =
        Scaling(rope, /*type_needed=*/key == "rope_scaling");
    for (const std::string& type : ScaledTypes()) scaling_.emplace(type, scaling);
    return;
  }
  // transformers 5: an object for each type of layer.
  ConfigReader both(*object, key, from_.problems);
  for (const std::string_view type : {kFull, kSliding}) {
    const json* rotation = both.Find(type);
    if (rotation == nullptr || !rotation->is_object()) {
      both.Refuse(type, "an object is needed, beside that of the other layers");
      return;
    }
    ConfigReader rope(*rotation, fmt::format("{}.{}", key, type), from_.problems);
    rotations_.emplace(type, rotation);
    scaling_.emplace(type, Scaling(rope, /*type_needed=*/false));
  }
}

std::optional<Llama3Scaling> Step3p5Parser::Scaling(ConfigReader& rope, bool type_needed) const {
  for (const std::string_view key : {"rope_theta", "partial_rotary_factor"}) rope.Find(key);
  const std::string_view type_key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string_view fallback = type_needed || rope.Find("factor") != nullptr ? "" : "default";
  const std::string type = type_needed
                               ? rope.Choice(type_key, {"llama3"}, "\"llama3\" is supported")
                               : rope.Choice(type_key, {"default", "llama3"},
                                             "\"llama3\" and \"default\" are supported", fallback);
  std::optional<Llama3Scaling> scaling;
  if (type == "llama3") scaling = ReadLlama3(rope);
  if (!type.empty()) RefuseForeignRopeKeys(rope, "llama3");
  return scaling;
}

std::vector<std::string> Step3p5Parser::ScaledTypes() const {
  // Without a list all layers are scaled.
  constexpr std::string_view kTypes = "yarn_only_types";
  const json* types = text().Find(kTypes);
  if (types == nullptr) return {std::string(kFull), std::string(kSliding)};
  const bool names = types->is_array() && std::ranges::all_of(*types, [](const json& type) {
                       return type == kFull || type == kSliding;
                     });
  if (!names) {
    text().Refuse(kTypes, "a list of \"full_attention\" and \"sliding_attention\" is needed");
    return {};
  }
  return types->get<std::vector<std::string>>();
}

void Step3p5Parser::ParseExperts() {
  dense_width_ = text().Integer("intermediate_size", 1, kMostOfADimension);
  ParseMoeLayers();
  if (moe_layers_.empty()) return;
  moe_.router.experts = text().Integer("moe_num_experts", 1, kMostHeads);
  moe_.router.top_k = text().Integer("moe_top_k", 1, kMostHeads);
  if (moe_.router.top_k > moe_.router.experts) {
    text().Refuse("moe_top_k", fmt::format("at most \"moe_num_experts\", {}, can be chosen",
                                           moe_.router.experts));
  }
  text().Choice("moe_router_activation", {"sigmoid"}, "\"sigmoid\" is supported");
  moe_.router.scaling_factor = text().Number("moe_router_scaling_factor", 1e-6, 1e6, 1.0);
  moe_.router.scoring = RouterScoring::kSigmoid;
  moe_.router.method = RouterMethod::kNoAuxTc;
  // The published code normalises weights whatever norm_expert_weight says.
  moe_.router.normalise = true;
  RequireTrue("use_moe_router_bias");
  text().Boolean("need_fp32_gate", true);  // routers run in float32 here in any case
  moe_.width = text().Integer("moe_intermediate_size", 1, kMostOfADimension);
  moe_.shared_width = text().Integer("share_expert_dim", 1, kMostOfADimension);
  moe_.shared_experts = 1;
}

void Step3p5Parser::ParseMoeLayers() {
  constexpr std::string_view kKey = "moe_layers_enum";
  constexpr std::string_view kNeeded =
      "layers with experts are needed, as a list or as text such as \"3,4,5\"";
  const json* layers = text().Find(kKey);
  if (layers == nullptr) {  // as in the published code
    for (int64_t i = 1; i < num_layers_; ++i) moe_layers_.insert(i);
    return;
  }
  if (layers->is_array()) {
    for (const json& layer : *layers) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() > INT32_MAX) {
        text().Refuse(kKey, kNeeded);
        return;
      }
      moe_layers_.insert(layer.get<int64_t>());
    }
    return;
  }
  std::string_view rest;
  if (layers->is_string()) rest = layers->get_ref<const std::string&>();
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view number = rest.substr(0, comma);
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), layer);
    if (error != std::errc() || end != number.data() + number.size() || layer < 0) {
      text().Refuse(kKey, kNeeded);
      return;
    }
    moe_layers_.insert(layer);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (!layers->is_string()) text().Refuse(kKey, kNeeded);
}

LayerSpec Step3p5Parser::Layer(int64_t index) const {
  const json* type = ElementOf("layer_types", index);
  if (type == nullptr || (*type != kFull && *type != kSliding)) {
    text().Refuse(
        "layer_types",
        fmt::format("element {} has to be \"full_attention\" or \"sliding_attention\"", index));
    return {};
  }
  LayerSpec layer;
  layer.attention = *type == kSliding ? sliding_ : full_;
  const auto head = static_cast<double>(full_.head_dim);
  const auto& name = type->get_ref<const std::string&>();
  const double rotated =
      head * RotationAt("partial_rotary_factors", "partial_rotary_factor", name, index, 0, 1, 1.0);
  layer.rotary.dims = static_cast<int64_t>(rotated);
  layer.rotary.theta = RotationAt("rope_theta", "rope_theta", name, index, 1, 1e12, std::nullopt);
  layer.rotary.interleaved = false;
  if (layer.rotary.dims < 2 || layer.rotary.dims % 2 != 0) {
    text().Refuse("partial_rotary_factors",
                  fmt::format("element {} has to leave an even number of \"head_dim\", {}", index,
                              full_.head_dim));
  }
  const auto scaling = scaling_.find(name);
  if (scaling != scaling_.end()) layer.rotary.llama3 = scaling->second;
  // 0 means none, as null does.
  const auto limit = [&](std::string_view key) {
    const double value = NumberAt(key, index, 0, 1e30, 0.0);
    return value == 0 ? kNoActivationLimit : value;
  };
  if (index < num_layers_ && moe_layers_.contains(index)) {
    MoeSpec moe = moe_;
    moe.limit = limit("swiglu_limits");
    moe.shared_limit = limit("swiglu_limits_shared");
    layer.mlp = moe;
  } else {
    layer.mlp = DenseMlpSpec{.width = dense_width_, .limit = limit("swiglu_limits_shared")};
  }
  return layer;
}

void Step3p5Parser::Parse(ModelConfig& config) {
  const size_t before = from_.problems.size();
  CheckLists();
  ParseAttention();
  ParseScaling();
  ParseExperts();
  RequireTrue("zero_centered");
  RefuseForeignKeys(text(), config.max_position_embeddings);
  if (from_.problems.size() > before) return;
  for (int64_t i = 0; i < num_layers_; ++i) config.layers.push_back(Layer(i));
  // Files may hold modules that num_nextn_predict_layers does not declare: the lists say what they
  // are like. The lists may also end with the target's layers.
  const int64_t num_modules = num_modules_ > 0 ? num_modules_ : ListedModules();
  if (num_modules == 0) return;
  config.mtp_layer = Layer(num_layers_);
  for (int64_t m = 1; m < num_modules; ++m) {
    if (Layer(num_layers_ + m) != config.mtp_layer) {
      text().Refuse("num_nextn_predict_layers", "MTP modules have to be alike");
    }
  }
}

int64_t Step3p5Parser::ListedModules() const {
  int64_t listed = INT32_MAX;
  for (const std::string_view key : kLists) {
    const json* list = text().Find(key);
    if (list == nullptr || list->is_number()) continue;
    listed = std::min(listed, static_cast<int64_t>(list->size()) - num_layers_);
  }
  return text().Find("layer_types") == nullptr ? 0 : listed;
}

}  // namespace

void ParseStep3p5Layers(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  Step3p5Parser(from, num_layers, config.num_nextn_predict_layers).Parse(config);
}

}  // namespace outrider
