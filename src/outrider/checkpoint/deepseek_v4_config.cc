// The layers of DeepSeek-V4: attention over a window and over compressed entries, experts in every
// layer, chosen by token in the first ones, and hyper-connections.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/family_parsers.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kMost = 65536;
// Ratios as published: the first has overlapping windows and an indexer, the second neither.
constexpr int64_t kIndexedRatio = 4;
constexpr int64_t kPlainRatio = 128;
// Kinds of layers as transformers 5 writes them.
constexpr std::string_view kWindowType = "sliding_attention";
constexpr std::string_view kIndexedType = "compressed_sparse_attention";
constexpr std::string_view kPlainType = "heavily_compressed_attention";
constexpr int64_t kMostOfABlock = 32;  // drafts of a DSpark drafter
// Rows of a group of the output's first matrix: groups are whole panels of packed weights.
constexpr int64_t kOutputRankMultiple = 16;

class DeepSeekV4Parser {
 public:
  DeepSeekV4Parser(const FamilyConfig& from, int64_t num_layers)
      : from_(from), num_layers_(num_layers) {}

  void Parse(ModelConfig& config);

 private:
  ConfigReader& text() const { return from_.text; }

  void ParseAttention();
  void ParseIndexer();
  void ParseRope();
  void ParseYarn(ConfigReader& rope);
  /// The widths and rates that transformers 5 writes beside or in the place of the published keys.
  int64_t RotatedDims() const;
  void CheckPartialRotation(ConfigReader& reader) const;
  void CheckRates() const;
  /// compress_ratios or, where it is missing, what layer_types says; null: neither.
  json RatioList() const;
  void ParseHashLayers();
  void ParseRatios(ModelConfig& config);
  void ParseExperts();
  void ParseDrafter(ModelConfig& config) const;
  LayerSpec Layer(int64_t ratio, bool by_token) const;

  const FamilyConfig& from_;
  int64_t num_layers_;
  CompressedSpec attention_;
  CompressedSpec indexer_;  // of its fields those of the indexer
  RotarySpec window_rotary_;
  RotarySpec compressed_rotary_;
  MoeSpec moe_;
  HyperConnectionSpec residual_;
  int64_t hash_layers_ = 0;
  std::vector<int64_t> ratios_;  // by layer
};

void DeepSeekV4Parser::Parse(ModelConfig& config) {
  const size_t before = from_.problems.size();
  ParseDrafter(config);
  ParseAttention();
  ParseRatios(config);
  ParseIndexer();
  ParseRope();
  ParseExperts();
  residual_.streams = text().Integer("hc_mult", 2, 64);
  residual_.iterations = text().Integer("hc_sinkhorn_iters", 1, 1000);
  residual_.eps = text().Number("hc_eps", 1e-12, 0.1);
  RefuseForeignKeys(text(), config.max_position_embeddings);
  if (from_.problems.size() > before) return;
  for (int64_t i = 0; i < num_layers_; ++i) {
    config.layers.push_back(Layer(ratios_[static_cast<size_t>(i)], i < hash_layers_));
  }
  config.mtp_layer = Layer(0, false);
}

/// With dspark_block_size the tensors mtp.* are the stages of a DSpark drafter and not MTP modules,
/// whatever num_nextn_predict_layers says.
void DeepSeekV4Parser::ParseDrafter(ModelConfig& config) const {
  if (text().Find("dspark_block_size") == nullptr) return;
  DSparkSpec& dspark = config.dspark.emplace();
  dspark.block_size = text().Integer("dspark_block_size", 1, kMostOfABlock);
  dspark.markov_rank = text().Integer("dspark_markov_rank", 1, kMostOfADimension);
  dspark.noise_token =
      static_cast<int32_t>(text().Integer("dspark_noise_token_id", 0, config.vocab_size - 1));
  const json* taps = text().Find("dspark_target_layer_ids");
  const bool are_layers = taps != nullptr && taps->is_array() && !taps->empty() &&
                          std::ranges::all_of(*taps, [&](const json& layer) {
                            return layer.is_number_unsigned() &&
                                   layer.get<uint64_t>() < static_cast<uint64_t>(num_layers_);
                          });
  if (are_layers) dspark.taps = taps->get<std::vector<int32_t>>();
  if (!are_layers ||
      std::ranges::adjacent_find(dspark.taps, std::greater_equal()) != dspark.taps.end()) {
    text().Refuse("dspark_target_layer_ids",
                  fmt::format("a rising list of layers, 0 to {}, is needed", num_layers_ - 1));
  }
  config.num_nextn_predict_layers = 0;
}

void DeepSeekV4Parser::ParseAttention() {
  CompressedSpec& a = attention_;
  const size_t before = from_.problems.size();
  a.heads = text().Integer("num_attention_heads", 1, kMost);
  if (text().Integer("num_key_value_heads", 1, kMost, 1) != 1) {
    text().Refuse("num_key_value_heads", "deepseek_v4 has one, which all heads read");
  }
  a.head_dim = text().Integer("head_dim", 2, kMost);
  const int64_t rope = RotatedDims();
  a.q_lora = text().Integer("q_lora_rank", 1, kMostOfADimension);
  a.window = text().Integer("sliding_window", 1, INT32_MAX);
  a.output_groups = text().Integer("o_groups", 1, kMost);
  a.output_rank = text().Integer("o_lora_rank", 1, kMostOfADimension);
  if (text().Boolean("attention_bias", false)) {
    text().Refuse("attention_bias", "deepseek_v4 has no biases");
  }
  if (from_.problems.size() > before) return;
  if (rope < 2 || rope % 2 != 0 || rope > a.head_dim) {
    text().Refuse("qk_rope_head_dim",
                  fmt::format("an even part of \"head_dim\", {}, is needed", a.head_dim));
  }
  if (a.heads % a.output_groups != 0) {
    text().Refuse("o_groups",
                  fmt::format("a divisor of \"num_attention_heads\", {}, is needed", a.heads));
  }
  if (a.output_rank % kOutputRankMultiple != 0) {
    text().Refuse("o_lora_rank", fmt::format("a multiple of {} is needed", kOutputRankMultiple));
  }
  window_rotary_.dims = compressed_rotary_.dims = rope;
  CheckPartialRotation(text());
  a.softmax_scale = 1 / std::sqrt(static_cast<double>(a.head_dim));
}

int64_t DeepSeekV4Parser::RotatedDims() const {
  constexpr std::string_view kPart = "partial_rotary_factor";
  if (text().Find("qk_rope_head_dim") != nullptr || text().Find(kPart) == nullptr) {
    return text().Integer("qk_rope_head_dim", 2, kMost);
  }
  return static_cast<int64_t>(static_cast<double>(attention_.head_dim) *
                              text().Number(kPart, 0, 1));
}

void DeepSeekV4Parser::CheckPartialRotation(ConfigReader& reader) const {
  constexpr std::string_view kPart = "partial_rotary_factor";
  if (reader.Find(kPart) == nullptr) return;
  const auto head = static_cast<double>(attention_.head_dim);
  if (static_cast<int64_t>(head * reader.Number(kPart, 0, 1)) != window_rotary_.dims) {
    reader.Refuse(kPart, fmt::format("of \"head_dim\", {}, \"qk_rope_head_dim\", {}, are rotated",
                                     attention_.head_dim, window_rotary_.dims));
  }
}

void DeepSeekV4Parser::CheckRates() const {
  const auto check = [](ConfigReader& reader, std::string_view key, int64_t needed) {
    if (reader.Integer(key, 1, INT32_MAX, needed) != needed) {
      reader.Refuse(key, fmt::format("{} is supported", needed));
    }
  };
  check(text(), "compress_rate_csa", kIndexedRatio);
  check(text(), "compress_rate_hca", kPlainRatio);
  constexpr std::string_view kKey = "compress_rates";
  const json* rates = text().Find(kKey);
  if (rates == nullptr) return;
  if (!rates->is_object()) {
    text().Refuse(kKey, "an object or null is needed");
    return;
  }
  ConfigReader reader(*rates, std::string(kKey), from_.problems);
  check(reader, kIndexedType, kIndexedRatio);
  check(reader, kPlainType, kPlainRatio);
  for (const std::string& other : reader.UnreadKeys()) {
    reader.Refuse(other, "it is no kind of layer");
  }
}

json DeepSeekV4Parser::RatioList() const {
  constexpr std::string_view kKey = "compress_ratios";
  constexpr std::string_view kTypes = "layer_types";
  const json* ratios = text().Find(kKey);
  const json* types = text().Find(kTypes);
  if (types == nullptr) return ratios == nullptr ? json() : *ratios;
  json list = json::array();
  if (types->is_array()) {
    for (const json& type : *types) {
      list.push_back(type == kWindowType    ? json(0)
                     : type == kIndexedType ? json(kIndexedRatio)
                     : type == kPlainType   ? json(kPlainRatio)
                                            : json());
    }
  }
  const bool known = std::ranges::none_of(list, [](const json& ratio) { return ratio.is_null(); });
  if (!known || std::cmp_not_equal(list.size(), num_layers_)) {
    text().Refuse(kTypes, fmt::format("a list of {} is needed, each \"{}\", \"{}\" or \"{}\"",
                                      num_layers_, kWindowType, kIndexedType, kPlainType));
    return ratios == nullptr ? json() : *ratios;
  }
  if (ratios == nullptr) return list;
  if (ratios->is_array() && ratios->size() >= list.size() &&
      !std::equal(list.begin(), list.end(), ratios->begin())) {
    text().Refuse(kTypes, "it does not say what \"compress_ratios\" says; keep one of them");
  }
  return *ratios;
}

void DeepSeekV4Parser::ParseHashLayers() {
  constexpr std::string_view kTypes = "mlp_layer_types";
  hash_layers_ = text().Integer("num_hash_layers", 0, kMost, 0);
  const json* types = text().Find(kTypes);
  if (types == nullptr) return;
  int64_t hashed = 0;
  bool known = types->is_array() && std::cmp_equal(types->size(), num_layers_);
  if (known) {
    const auto first = std::ranges::find_if(*types, [](const json& t) { return t != "hash_moe"; });
    hashed = first - types->begin();
    known = std::all_of(first, types->end(), [](const json& type) { return type == "moe"; });
  }
  if (!known) {
    text().Refuse(kTypes, fmt::format("{} entries are needed, \"hash_moe\" first, then \"moe\"",
                                      num_layers_));
  } else if (text().Find("num_hash_layers") != nullptr && hash_layers_ != hashed) {
    text().Refuse(kTypes, fmt::format("\"num_hash_layers\" is {}", hash_layers_));
  }
  hash_layers_ = hashed;
}

void DeepSeekV4Parser::ParseRatios(ModelConfig& config) {
  constexpr std::string_view kKey = "compress_ratios";
  CheckRates();
  const json ratios = RatioList();
  const json* list = &ratios;
  const auto needed = static_cast<size_t>(num_layers_);
  if (!list->is_array() || list->size() < needed) {
    text().Refuse(
        kKey, fmt::format("a list with a ratio for each of the {} layers is needed", num_layers_));
    return;
  }
  const auto is_ratio = [](const json& value) {
    return value == 0 || value == kIndexedRatio || value == kPlainRatio;
  };
  for (size_t i = 0; i < list->size(); ++i) {
    if (i < needed && is_ratio((*list)[i])) {
      ratios_.push_back((*list)[i].get<int64_t>());
    } else if (i < needed || (*list)[i] != 0) {
      text().Refuse(kKey,
                    fmt::format("element {} has to be {}", i,
                                i < needed ? fmt::format("0, {} or {}", kIndexedRatio, kPlainRatio)
                                           : "0, as it is a draft module's"));
      return;
    }
  }
  const int64_t num_modules = config.num_nextn_predict_layers;
  if (config.dspark) {
    config.dspark->stages = static_cast<int64_t>(list->size() - needed);
    if (list->size() == needed) {
      text().Refuse(kKey, "with \"dspark_block_size\" a 0 for each stage has to follow");
    }
    return;
  }
  if (list->size() > needed && list->size() < needed + static_cast<size_t>(num_modules)) {
    text().Refuse(
        kKey, fmt::format("an element for each of the {} draft modules is needed", num_modules));
  }
}

void DeepSeekV4Parser::ParseIndexer() {
  // Configs name the sizes even where no layer has an indexer.
  if (std::ranges::find(ratios_, kIndexedRatio) == ratios_.end()) {
    for (const std::string_view key : {"index_n_heads", "index_head_dim", "index_topk"}) {
      text().Find(key);
    }
    return;
  }
  indexer_.index_heads = text().Integer("index_n_heads", 1, kMost);
  indexer_.index_dim = text().Integer("index_head_dim", 2, kMost);
  indexer_.index_top_k = text().Integer("index_topk", 1, INT32_MAX);
  if (indexer_.index_dim < window_rotary_.dims) {
    text().Refuse("index_head_dim",
                  fmt::format("at least \"qk_rope_head_dim\", {}, is needed", window_rotary_.dims));
  }
}

void DeepSeekV4Parser::ParseRope() {
  const auto [key, object] = FindRope(text());
  static const json kNothing = json::object();
  const json& all = object != nullptr ? *object : kNothing;
  const bool nested = all.contains("main") || all.contains("compress");
  if (!nested) {
    ConfigReader rope(all, key, from_.problems);
    window_rotary_.theta =
        (rope.Find("rope_theta") != nullptr ? rope : text()).Number("rope_theta", 1, 1e12);
    compressed_rotary_.theta = text().Number("compress_rope_theta", 1, 1e12);
    ParseYarn(rope);
    return;
  }
  // transformers 5: one object for layers with a window only, one for the others.
  ConfigReader both(all, key, from_.problems);
  for (const std::string_view part : {"main", "compress"}) {
    const json* rotation = both.Find(part);
    if (rotation == nullptr || !rotation->is_object()) {
      both.Refuse(part, "an object is needed, beside that of the other layers");
      return;
    }
    ConfigReader rope(*rotation, fmt::format("{}.{}", key, part), from_.problems);
    const bool main = part == "main";
    const double theta = rope.Number("rope_theta", 1, 1e12);
    (main ? window_rotary_ : compressed_rotary_).theta = theta;
    if (!main) {
      ParseYarn(rope);
      continue;
    }
    CheckPartialRotation(rope);
    rope.Choice("rope_type", {"default"}, "\"default\" is supported", "default");
    RefuseForeignRopeKeys(rope, "YaRN");
  }
}

/// Reads the rotation of layers with compressed entries.
void DeepSeekV4Parser::ParseYarn(ConfigReader& rope) {
  CheckPartialRotation(rope);
  if (std::optional<YarnScaling> yarn = ReadYarnRamp(rope)) {
    CheckYarnRamp(rope, *yarn);
    // cos and sin are not magnified.
    yarn->mscale = 0;
    yarn->mscale_all_dim = 0;
    compressed_rotary_.yarn = *yarn;
  }
  if (rope.Number("attention_factor", 0, 1e6, 1) != 1) {
    rope.Refuse("attention_factor", "deepseek_v4 has none; leave it out");
  }
  for (const std::string_view key : {"mscale", "mscale_all_dim"}) {
    if (rope.Find(key) != nullptr) rope.Refuse(key, "deepseek_v4 has none; leave it out");
  }
  RefuseForeignRopeKeys(rope, "YaRN");
}

void DeepSeekV4Parser::ParseExperts() {
  const size_t before = from_.problems.size();
  text().Choice("hidden_act", {"silu"}, "\"silu\" is supported", "silu");
  RouterSpec& router = moe_.router;
  router.experts = text().Integer("n_routed_experts", 1, kMost);
  router.top_k = text().Integer("num_experts_per_tok", 1, kMost);
  router.scoring = RouterScoring::kSqrtSoftplus;
  text().Choice("scoring_func", {"sqrtsoftplus"}, "\"sqrtsoftplus\" is supported");
  text().Choice("topk_method", {"noaux_tc"}, "\"noaux_tc\" is supported", "noaux_tc");
  if (!text().Boolean("norm_topk_prob", true)) {
    text().Refuse("norm_topk_prob", "deepseek_v4 is supported with true only");
  }
  router.scaling_factor = text().Number("routed_scaling_factor", 1e-6, 1e6);
  moe_.width = text().Integer("moe_intermediate_size", 1, kMostOfADimension);
  moe_.shared_experts = text().Integer("n_shared_experts", 0, 1024);
  moe_.shared_width = moe_.shared_experts * moe_.width;
  moe_.limit = moe_.shared_limit = text().Number("swiglu_limit", 1e-3, 1e30);
  moe_.limits_gate = true;
  ParseHashLayers();
  if (from_.problems.size() > before) return;
  if (router.top_k > router.experts) {
    text().Refuse("num_experts_per_tok", fmt::format("at most \"n_routed_experts\", {}, can be "
                                                     "chosen",
                                                     router.experts));
  }
}

LayerSpec DeepSeekV4Parser::Layer(int64_t ratio, bool by_token) const {
  LayerSpec layer{.attention = {}, .rotary = window_rotary_, .mlp = moe_, .residual = residual_};
  CompressedSpec attention = attention_;
  attention.ratio = ratio;
  if (ratio != 0) layer.rotary = compressed_rotary_;
  if (ratio == kIndexedRatio) {
    attention.overlaps = true;
    attention.index_heads = indexer_.index_heads;
    attention.index_dim = indexer_.index_dim;
    attention.index_top_k = indexer_.index_top_k;
  }
  layer.attention = attention;
  std::get<MoeSpec>(layer.mlp).router.method =
      by_token ? RouterMethod::kTokenTable : RouterMethod::kNoAuxTc;
  return layer;
}

}  // namespace

void ParseDeepSeekV4Layers(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  DeepSeekV4Parser(from, num_layers).Parse(config);
}

}  // namespace outrider
