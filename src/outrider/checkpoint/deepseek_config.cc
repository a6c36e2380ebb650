// The layers of the DeepSeek family (V2, V3, R1, Kimi-K2, GLM-4.7-Flash): latent attention, alike
// in all layers; dense MLPs first, then mixtures of experts.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/family_parsers.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/rope_object.h"

namespace outrider {
namespace {

using nlohmann::json;

/// The epsilon of q_a_layernorm and kv_a_layernorm: the default of transformers' class, which no
/// config changes.
constexpr double kLatentNormEps = 1e-6;

class DeepSeekParser {
 public:
  DeepSeekParser(const FamilyConfig& from, int64_t num_layers)
      : from_(from), num_layers_(num_layers) {}

  void Parse(ModelConfig& config);
  void ParseDraftLayer(ModelConfig& config);

 private:
  void ParseAttention();
  void ParseIndexer();
  /// Refuses a list of layers' kinds, if there is one, that has another or is too short.
  void ParseLayersOfOneKind(std::string_view key, std::string_view kind,
                            std::string_view otherwise);
  void ParseRope();
  /// The softmax scale and what else follows from what was read.
  void FinishAttention();
  void ParseDenseMlp();
  void ParseFeedForward();
  void ParseFirstDenseLayers();
  void ParseRouter();
  void ParseGroups();
  LayerSpec Layer(bool is_moe) const;

  const FamilyConfig& from_;
  int64_t num_layers_;
  MlaSpec mla_;
  RotarySpec rotary_;
  DenseMlpSpec dense_;
  MoeSpec moe_;                  // no experts: every layer is dense
  int64_t first_moe_layer_ = 0;  // layers before this one are dense
  int64_t moe_layer_freq_ = 1;   // of the others, those whose index it divides have experts
};

void DeepSeekParser::Parse(ModelConfig& config) {
  ParseAttention();
  ParseRope();
  ParseFeedForward();
  RefuseForeignKeys(from_.text, config.max_position_embeddings);
  FinishAttention();
  moe_.shared_width = moe_.shared_experts * moe_.width;
  const bool has_experts = moe_.router.experts > 0;
  config.layers.clear();
  for (int64_t i = 0; i < num_layers_; ++i) {
    config.layers.push_back(
        Layer(has_experts && i >= first_moe_layer_ && i % moe_layer_freq_ == 0));
  }
  config.mtp_layer = Layer(has_experts);
}

void DeepSeekParser::ParseDraftLayer(ModelConfig& config) {
  ParseAttention();
  ParseRope();
  ParseDenseMlp();
  RefuseForeignKeys(from_.text, config.max_position_embeddings);
  FinishAttention();
  config.layers = {Layer(/*is_moe=*/false)};
}

void DeepSeekParser::FinishAttention() {
  rotary_.dims = mla_.rope;
  const double magnitude = rotary_.yarn ? rotary_.yarn->Magnitude(rotary_.yarn->mscale_all_dim) : 1;
  mla_.softmax_scale = magnitude * magnitude / std::sqrt(static_cast<double>(mla_.query_width()));
  mla_.latent_norm_eps = kLatentNormEps;
}

LayerSpec DeepSeekParser::Layer(bool is_moe) const {
  LayerSpec layer{.attention = mla_, .rotary = rotary_, .mlp = dense_};
  if (is_moe) layer.mlp = moe_;
  return layer;
}

void DeepSeekParser::ParseAttention() {
  const size_t before = from_.problems.size();
  mla_.heads = from_.text.Integer("num_attention_heads", 1, 65536);
  // null means that queries are not compressed (DeepSeek-V2-Lite); a missing key says nothing.
  if (from_.text.Contains("q_lora_rank") && from_.text.Find("q_lora_rank") == nullptr) {
    mla_.q_lora = 0;
  } else {
    mla_.q_lora = from_.text.Integer("q_lora_rank", 1, kMostOfADimension);
  }
  mla_.latent = from_.text.Integer("kv_lora_rank", 1, kMostOfADimension);
  mla_.nope = from_.text.Integer("qk_nope_head_dim", 1, 65536);
  mla_.rope = from_.text.Integer("qk_rope_head_dim", 2, 65536);
  if (mla_.rope % 2 != 0) {
    from_.text.Refuse("qk_rope_head_dim", "an even number is needed, as pairs are rotated");
  }
  mla_.value = from_.text.Integer("v_head_dim", 1, 65536);

  const int64_t heads = mla_.heads;
  if (from_.problems.size() > before) return;
  if (from_.text.Integer("num_key_value_heads", 1, 65536, heads) != heads) {
    from_.text.Refuse(
        "num_key_value_heads",
        fmt::format("latent attention has as many as \"num_attention_heads\", {}", heads));
  }
  if (from_.model_type == "deepseek_v32" || from_.model_type == "glm_moe_dsa") ParseIndexer();
}

void DeepSeekParser::ParseLayersOfOneKind(std::string_view key, std::string_view kind,
                                          std::string_view otherwise) {
  const json* kinds = from_.text.Find(key);
  if (kinds == nullptr) return;
  if (!kinds->is_array() ||
      std::ranges::any_of(*kinds, [&](const json& one) { return one != json(kind); })) {
    from_.text.Refuse(key, otherwise);
  } else if (static_cast<int64_t>(kinds->size()) < num_layers_) {
    from_.text.Refuse(key, fmt::format("an element for each of {} layers is needed", num_layers_));
  }
}

void DeepSeekParser::ParseIndexer() {
  const bool glm = from_.model_type == "glm_moe_dsa";
  IndexerSpec& indexer = mla_.indexer.emplace();
  indexer.heads = from_.text.Integer("index_n_heads", 1, 1024);
  indexer.dim = from_.text.Integer("index_head_dim", 1, 65536);
  indexer.top_k = from_.text.Integer("index_topk", 1, INT32_MAX);
  indexer.interleaved = from_.text.Boolean("indexer_rope_interleave", glm);
  if (indexer.dim < mla_.rope) {
    from_.text.Refuse("index_head_dim",
                      fmt::format("its first \"qk_rope_head_dim\", {}, are rotated", mla_.rope));
  }
  if (mla_.q_lora == 0) from_.text.Refuse("q_lora_rank", "an indexer reads the queries' latent");
  // What transformers 5 writes.
  ParseLayersOfOneKind("layer_types", "indexed_attention",
                       "only layers of \"indexed_attention\" are supported");
  // GLM-5.2 and later have layers that read what the layer before them chose.
  ParseLayersOfOneKind("indexer_types", "full",
                       "only layers with an indexer of their own, \"full\"");
  if (from_.text.Find("index_topk_pattern") != nullptr) {
    from_.text.Refuse("index_topk_pattern", "every layer needs an indexer of its own; null");
  }
  if (from_.text.Integer("index_topk_freq", 1, 4096, 1) != 1) {
    from_.text.Refuse("index_topk_freq", "every layer needs an indexer of its own; 1");
  }
}

void DeepSeekParser::ParseRope() {
  rotary_.interleaved = from_.text.Boolean("rope_interleave", true);
  if (from_.family == ModelFamily::kDeepSeekV2 && !rotary_.interleaved) {
    from_.text.Refuse("rope_interleave", "deepseek_v2 rotates interleaved pairs");
  }
  // Published configs have rope_theta at the top, transformers 5 writes it into rope_parameters.
  const auto [key, object] = FindRope(from_.text);
  static const json kNothing = json::object();
  ConfigReader rope(object != nullptr ? *object : kNothing, key, from_.problems);
  ConfigReader& theta = rope.Find("rope_theta") != nullptr ? rope : from_.text;
  rotary_.theta = theta.Number("rope_theta", 1, 1e12);
  for (ConfigReader* reader : {&from_.text, &rope}) {
    if (reader->Number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
      reader->Refuse("partial_rotary_factor", "latent attention rotates all of qk_rope_head_dim");
    }
  }
  rotary_.yarn = ParseYarn(rope, from_.problems);
  RefuseForeignRopeKeys(rope, "YaRN");
}

void DeepSeekParser::ParseDenseMlp() {
  from_.text.Choice("hidden_act", {"silu"}, "\"silu\" is supported");
  if (from_.text.Boolean("mlp_bias", false)) from_.text.Refuse("mlp_bias", "MLPs have no biases");
  dense_.width = from_.text.Integer("intermediate_size", 1, kMostOfADimension);
}

void DeepSeekParser::ParseFeedForward() {
  ParseDenseMlp();
  if (from_.text.Contains("n_routed_experts") && from_.text.Find("n_routed_experts") == nullptr) {
    moe_.router.experts = 0;
  } else {
    moe_.router.experts = from_.text.Integer("n_routed_experts", 0, 65536);
  }
  if (moe_.router.experts == 0) {
    first_moe_layer_ = num_layers_;
    return;
  }
  if (from_.text.Contains("n_shared_experts") && from_.text.Find("n_shared_experts") == nullptr) {
    moe_.shared_experts = 0;
  } else {
    moe_.shared_experts = from_.text.Integer("n_shared_experts", 0, 1024);
  }
  moe_.width = from_.text.Integer("moe_intermediate_size", 1, kMostOfADimension);
  moe_layer_freq_ = from_.text.Integer("moe_layer_freq", 1, 4096, 1);
  ParseFirstDenseLayers();
  ParseRouter();
}

void DeepSeekParser::ParseFirstDenseLayers() {
  const int64_t layers = num_layers_;
  const json* types = from_.text.Find("mlp_layer_types");
  // What transformers 5 writes for glm4_moe_lite in place of first_k_dense_replace.
  if (types != nullptr && from_.text.Find("first_k_dense_replace") == nullptr) {
    if (types->is_array() && std::cmp_equal(types->size(), layers)) {
      const auto first = std::find_if_not(types->begin(), types->end(),
                                          [](const json& type) { return type == "dense"; });
      first_moe_layer_ = first - types->begin();
      if (std::all_of(first, types->end(), [](const json& type) { return type == "sparse"; })) {
        return;
      }
    }
    from_.text.Refuse(
        "mlp_layer_types",
        fmt::format("{} entries are needed, \"dense\" first, then \"sparse\"", layers));
    return;
  }
  first_moe_layer_ = from_.text.Integer("first_k_dense_replace", 0, layers);
}

void DeepSeekParser::ParseRouter() {
  const bool v2 = from_.family == ModelFamily::kDeepSeekV2;
  moe_.router.scoring = v2 ? RouterScoring::kSoftmax : RouterScoring::kSigmoid;
  // Configs that transformers 5 writes have no scoring_func, and topk_method for deepseek_v2 only:
  // its classes know one scoring each. GLM-4.7-Flash is published without scoring_func as well.
  if (v2) {
    from_.text.Choice("scoring_func", {"softmax"}, "deepseek_v2 uses \"softmax\"", "softmax");
    const std::string method =
        from_.text.Choice("topk_method", {"greedy", "group_limited_greedy"},
                          "deepseek_v2 uses \"greedy\" or \"group_limited_greedy\"");
    moe_.router.method =
        method == "greedy" ? RouterMethod::kGreedy : RouterMethod::kGroupLimitedGreedy;
  } else {
    from_.text.Choice("scoring_func", {"sigmoid"},
                      fmt::format("{} uses \"sigmoid\"", from_.model_type), "sigmoid");
    from_.text.Choice("topk_method", {"noaux_tc"},
                      fmt::format("{} uses \"noaux_tc\"", from_.model_type), "noaux_tc");
    moe_.router.method = RouterMethod::kNoAuxTc;
  }
  moe_.router.normalise = from_.text.Boolean("norm_topk_prob");
  if (v2 && moe_.router.normalise) {
    from_.text.Refuse("norm_topk_prob", "deepseek_v2 does not renormalise expert weights");
  }
  moe_.router.scaling_factor = from_.text.Number("routed_scaling_factor", 1e-6, 1e6);
  ParseGroups();
}

void DeepSeekParser::ParseGroups() {
  const size_t before = from_.problems.size();
  const int64_t experts = moe_.router.experts;
  moe_.router.top_k = from_.text.Integer("num_experts_per_tok", 1, experts);
  if (moe_.router.method == RouterMethod::kGreedy) return;  // n_group, topk_group mean nothing

  moe_.router.groups = from_.text.Integer("n_group", 1, experts);
  if (from_.problems.size() > before) return;
  if (experts % moe_.router.groups != 0) {
    from_.text.Refuse("n_group", fmt::format("it must divide \"n_routed_experts\", {}", experts));
    return;
  }
  const int64_t group_size = experts / moe_.router.groups;
  if (moe_.router.groups > 1 && moe_.router.method == RouterMethod::kNoAuxTc && group_size < 2) {
    from_.text.Refuse("n_group", "a group needs two experts, as its best two rank it");
  }
  moe_.router.top_groups = from_.text.Integer("topk_group", 1, moe_.router.groups);
  if (from_.problems.size() == before && moe_.router.top_k > moe_.router.top_groups * group_size) {
    from_.text.Refuse("num_experts_per_tok", fmt::format("the chosen groups hold {} experts",
                                                         moe_.router.top_groups * group_size));
  }
}

}  // namespace

void ParseDeepSeekLayers(const FamilyConfig& from, int64_t num_layers, ModelConfig& config) {
  DeepSeekParser(from, num_layers).Parse(config);
}

void ParseDeepSeekDraftLayer(const FamilyConfig& from, ModelConfig& config) {
  DeepSeekParser(from, /*num_layers=*/1).ParseDraftLayer(config);
}

}  // namespace outrider
