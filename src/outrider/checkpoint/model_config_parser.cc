// config.json to ModelConfig, family by family. Longer than most files: every field is read,
// checked and refused in one place.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/foreign_keys.h"
#include "outrider/checkpoint/model_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of any dimension
constexpr double kMaxParameters = 1e14;         // far above any model, far below overflow

struct KnownModel {
  std::string_view model_type;
  ModelFamily family;
  std::string_view architecture;
};
constexpr std::array<KnownModel, 4> kKnownModels{{
    {"deepseek_v2", ModelFamily::kDeepSeekV2, "DeepseekV2ForCausalLM"},
    {"deepseek_v3", ModelFamily::kDeepSeekV3, "DeepseekV3ForCausalLM"},
    {"kimi_k2", ModelFamily::kDeepSeekV3, "DeepseekV3ForCausalLM"},
    {"glm4_moe_lite", ModelFamily::kGlm4MoeLite, "Glm4MoeLiteForCausalLM"},
}};

const KnownModel* FindModel(const json& object) {
  const auto it = object.find("model_type");
  if (it == object.end() || !it->is_string()) return nullptr;
  for (const KnownModel& model : kKnownModels) {
    if (it->get_ref<const std::string&>() == model.model_type) return &model;
  }
  return nullptr;
}

/// The object that describes the language model: the config itself, or its text_config where a
/// multimodal model (Kimi-K2.5) wraps one; and which model it is.
std::pair<const json*, const KnownModel*> FindLanguageModel(const json& config,
                                                            std::string_view where) {
  if (const KnownModel* model = FindModel(config)) return {&config, model};
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) {
    if (const KnownModel* model = FindModel(*text)) return {&*text, model};
  }
  std::string known;
  for (const KnownModel& model : kKnownModels) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", model.model_type);
  }
  const auto type = config.find("model_type");
  throw InvalidArgument(
      "{}: \"model_type\" is {}; known are {}, and models with one of these as text_config", where,
      type == config.end() ? "missing" : Shown(*type), known);
}

/// One config.json on its way to a ModelConfig. `text` holds the language model's keys; `outer` is
/// the whole file, which differs from it for multimodal models.
class Parser {
 public:
  Parser(const json& outer, const json& text, const KnownModel& model)
      : model_(model),
        nested_(&outer != &text),
        outer_(outer, "", problems_),
        text_(text, nested_ ? "text_config" : "", problems_) {}

  ModelConfig Parse();
  void ParseGenerationConfig(const json& generation);

  const std::vector<std::string>& problems() const { return problems_; }
  /// The language model's keys that mean nothing here.
  std::vector<std::string> UnreadKeys() const { return text_.UnreadKeys(); }
  ModelConfig Take() { return std::move(config_); }

 private:
  void ParseArchitecture();
  void ParseAttention();
  void ParseRope();
  void ParseYarn(ConfigReader& rope);
  void ParseFeedForward();
  void ParseFirstDenseLayers();
  void ParseRouter();
  void ParseGroups();
  void ParseDType();
  void ParseQuantization();
  void ParseTokens(ConfigReader& reader);
  void CheckParameterCount();

  const KnownModel& model_;
  bool nested_;
  std::vector<std::string> problems_;
  ConfigReader outer_;
  ConfigReader text_;
  ModelConfig config_;
};

ModelConfig Parser::Parse() {
  config_.family = model_.family;
  config_.model_type = text_.String("model_type");
  config_.tensor_prefix = nested_ ? "language_model." : "";
  ParseArchitecture();

  config_.vocab_size = text_.Integer("vocab_size", 1, kMaxSize);
  config_.hidden_size = text_.Integer("hidden_size", 1, kMaxSize);
  config_.num_hidden_layers = text_.Integer("num_hidden_layers", 1, 4096);
  config_.num_nextn_predict_layers = text_.Integer("num_nextn_predict_layers", 0, 64, 0);
  config_.max_position_embeddings = text_.Integer("max_position_embeddings", 1, INT32_MAX);
  config_.tie_word_embeddings = text_.Boolean("tie_word_embeddings", false);
  config_.rms_norm_eps = text_.Number("rms_norm_eps", 1e-12, 0.1);

  ParseAttention();
  ParseRope();
  ParseFeedForward();
  ParseDType();
  ParseQuantization();
  ParseTokens(nested_ && text_.Find("eos_token_id") == nullptr ? outer_ : text_);
  RefuseForeignKeys(text_, config_.max_position_embeddings);
  CheckParameterCount();
  return config_;
}

void Parser::ParseArchitecture() {
  const json* list = text_.Find("architectures");
  if (list == nullptr) return;
  if (!list->is_array() || list->empty() || !list->front().is_string()) {
    text_.Refuse("architectures", "a list of names is needed");
    return;
  }
  config_.architecture = list->front().get<std::string>();
  if (config_.architecture != model_.architecture) {
    text_.Refuse("architectures", fmt::format("model_type {} is known with [\"{}\"]",
                                              model_.model_type, model_.architecture));
  }
}

void Parser::ParseAttention() {
  const size_t before = problems_.size();
  config_.num_attention_heads = text_.Integer("num_attention_heads", 1, 65536);
  // null means that queries are not compressed (DeepSeek-V2-Lite); a missing key says nothing.
  if (text_.Contains("q_lora_rank") && text_.Find("q_lora_rank") == nullptr) {
    config_.q_lora_rank = 0;
  } else {
    config_.q_lora_rank = text_.Integer("q_lora_rank", 1, kMaxSize);
  }
  config_.kv_lora_rank = text_.Integer("kv_lora_rank", 1, kMaxSize);
  config_.qk_nope_head_dim = text_.Integer("qk_nope_head_dim", 1, 65536);
  config_.qk_rope_head_dim = text_.Integer("qk_rope_head_dim", 2, 65536);
  if (config_.qk_rope_head_dim % 2 != 0) {
    text_.Refuse("qk_rope_head_dim", "an even number is needed, as pairs are rotated");
  }
  config_.v_head_dim = text_.Integer("v_head_dim", 1, 65536);
  config_.attention_bias = text_.Boolean("attention_bias", false);

  const int64_t heads = config_.num_attention_heads;
  if (problems_.size() > before) return;
  if (text_.Integer("num_key_value_heads", 1, 65536, heads) != heads) {
    text_.Refuse("num_key_value_heads",
                 fmt::format("latent attention has as many as \"num_attention_heads\", {}", heads));
  }
}

void Parser::ParseRope() {
  config_.rope_interleaved = text_.Boolean("rope_interleave", true);
  if (model_.family == ModelFamily::kDeepSeekV2 && !config_.rope_interleaved) {
    text_.Refuse("rope_interleave", "deepseek_v2 rotates interleaved pairs");
  }
  // Published configs have rope_theta at the top and rope_scaling (an object or null); transformers
  // 5 writes both into rope_parameters.
  std::string_view key = "rope_scaling";
  if (text_.Find(key) == nullptr) key = "rope_parameters";
  const json* object = text_.Find(key);
  static const json kNothing = json::object();
  if (object != nullptr && !object->is_object()) {
    text_.Refuse(key, "an object or null is needed");
    object = nullptr;
  }
  ConfigReader rope(object != nullptr ? *object : kNothing, std::string(key), problems_);
  ConfigReader& theta = rope.Find("rope_theta") != nullptr ? rope : text_;
  config_.rope_theta = theta.Number("rope_theta", 1, 1e12);
  for (ConfigReader* reader : {&text_, &rope}) {
    if (reader->Number("partial_rotary_factor", 0, 1, 1.0) != 1.0) {
      reader->Refuse("partial_rotary_factor", "latent attention rotates all of qk_rope_head_dim");
    }
  }
  ParseYarn(rope);
  RefuseForeignRopeKeys(rope);
}

void Parser::ParseYarn(ConfigReader& rope) {
  const std::string_view type_key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  // Without a type there is no scaling, unless other keys ask for some.
  const std::string_view fallback = rope.Find("factor") == nullptr ? "default" : "";
  const std::string type = rope.Choice(type_key, {"default", "yarn"},
                                       "\"yarn\" and \"default\" are supported", fallback);
  if (type != "yarn") return;
  const size_t before = problems_.size();
  YarnScaling yarn;
  yarn.factor = rope.Number("factor", 1, 1e6);
  yarn.original_max_position_embeddings =
      rope.Integer("original_max_position_embeddings", 1, INT32_MAX);
  yarn.beta_fast = rope.Number("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = rope.Number("beta_slow", 1e-3, 1e6, 1);
  yarn.truncate = rope.Boolean("truncate", true);
  yarn.mscale = rope.Number("mscale", 0, 100, 1);
  yarn.mscale_all_dim = rope.Number("mscale_all_dim", 0, 100, 0);
  if (problems_.size() > before) return;

  if (yarn.beta_fast < yarn.beta_slow) {
    rope.Refuse("beta_fast", fmt::format("it may not be below \"beta_slow\", {}", yarn.beta_slow));
  }
  // DeepSeek's code and transformers disagree on one of the two alone, unless it is mscale 1. No
  // published config has one alone.
  const bool both = yarn.mscale > 0 && yarn.mscale_all_dim > 0;
  if (!both && (yarn.mscale_all_dim != 0 || yarn.mscale != 1)) {
    rope.Refuse("mscale", "it needs \"mscale_all_dim\" beside it, both above 0");
  } else if (both && rope.Find("mscale") == nullptr) {
    rope.Refuse("mscale_all_dim", "it needs \"mscale\" beside it, both above 0");
  }
  if (rope.Find("attention_factor") != nullptr) {
    rope.Refuse("attention_factor", "use \"mscale\" and \"mscale_all_dim\"");
  }
  config_.yarn = yarn;
}

void Parser::ParseFeedForward() {
  text_.Choice("hidden_act", {"silu"}, "\"silu\" is supported");
  if (text_.Boolean("mlp_bias", false)) text_.Refuse("mlp_bias", "MLPs have no biases");
  config_.intermediate_size = text_.Integer("intermediate_size", 1, kMaxSize);
  if (text_.Contains("n_routed_experts") && text_.Find("n_routed_experts") == nullptr) {
    config_.n_routed_experts = 0;
  } else {
    config_.n_routed_experts = text_.Integer("n_routed_experts", 0, 65536);
  }
  if (config_.n_routed_experts == 0) {
    config_.first_k_dense_replace = config_.num_hidden_layers;
    return;
  }
  if (text_.Contains("n_shared_experts") && text_.Find("n_shared_experts") == nullptr) {
    config_.n_shared_experts = 0;
  } else {
    config_.n_shared_experts = text_.Integer("n_shared_experts", 0, 1024);
  }
  config_.moe_intermediate_size = text_.Integer("moe_intermediate_size", 1, kMaxSize);
  config_.moe_layer_freq = text_.Integer("moe_layer_freq", 1, 4096, 1);
  ParseFirstDenseLayers();
  ParseRouter();
}

void Parser::ParseFirstDenseLayers() {
  const int64_t layers = config_.num_hidden_layers;
  const json* types = text_.Find("mlp_layer_types");
  // What transformers 5 writes for glm4_moe_lite in place of first_k_dense_replace.
  if (types != nullptr && text_.Find("first_k_dense_replace") == nullptr) {
    if (types->is_array() && std::cmp_equal(types->size(), layers)) {
      const auto first = std::find_if_not(types->begin(), types->end(),
                                          [](const json& type) { return type == "dense"; });
      config_.first_k_dense_replace = first - types->begin();
      if (std::all_of(first, types->end(), [](const json& type) { return type == "sparse"; })) {
        return;
      }
    }
    text_.Refuse("mlp_layer_types",
                 fmt::format("{} entries are needed, \"dense\" first, then \"sparse\"", layers));
    return;
  }
  config_.first_k_dense_replace = text_.Integer("first_k_dense_replace", 0, layers);
}

void Parser::ParseRouter() {
  const bool v2 = model_.family == ModelFamily::kDeepSeekV2;
  config_.router_scoring = v2 ? RouterScoring::kSoftmax : RouterScoring::kSigmoid;
  // Configs that transformers 5 writes have no scoring_func, and topk_method for deepseek_v2 only:
  // its classes know one scoring each. GLM-4.7-Flash is published without scoring_func as well.
  if (v2) {
    text_.Choice("scoring_func", {"softmax"}, "deepseek_v2 uses \"softmax\"", "softmax");
    const std::string method =
        text_.Choice("topk_method", {"greedy", "group_limited_greedy"},
                     "deepseek_v2 uses \"greedy\" or \"group_limited_greedy\"");
    config_.router_method =
        method == "greedy" ? RouterMethod::kGreedy : RouterMethod::kGroupLimitedGreedy;
  } else {
    text_.Choice("scoring_func", {"sigmoid"}, fmt::format("{} uses \"sigmoid\"", model_.model_type),
                 "sigmoid");
    text_.Choice("topk_method", {"noaux_tc"},
                 fmt::format("{} uses \"noaux_tc\"", model_.model_type), "noaux_tc");
    config_.router_method = RouterMethod::kNoAuxTc;
  }
  config_.norm_topk_prob = text_.Boolean("norm_topk_prob");
  if (v2 && config_.norm_topk_prob) {
    text_.Refuse("norm_topk_prob", "deepseek_v2 does not renormalise expert weights");
  }
  config_.routed_scaling_factor = text_.Number("routed_scaling_factor", 1e-6, 1e6);
  ParseGroups();
}

void Parser::ParseGroups() {
  const size_t before = problems_.size();
  const int64_t experts = config_.n_routed_experts;
  config_.num_experts_per_tok = text_.Integer("num_experts_per_tok", 1, experts);
  if (config_.router_method == RouterMethod::kGreedy) return;  // n_group, topk_group mean nothing

  config_.n_group = text_.Integer("n_group", 1, experts);
  if (problems_.size() > before) return;
  if (experts % config_.n_group != 0) {
    text_.Refuse("n_group", fmt::format("it must divide \"n_routed_experts\", {}", experts));
    return;
  }
  const int64_t group_size = experts / config_.n_group;
  if (config_.n_group > 1 && config_.router_method == RouterMethod::kNoAuxTc && group_size < 2) {
    text_.Refuse("n_group", "a group needs two experts, as its best two rank it");
  }
  config_.topk_group = text_.Integer("topk_group", 1, config_.n_group);
  if (problems_.size() == before && config_.num_experts_per_tok > config_.topk_group * group_size) {
    text_.Refuse("num_experts_per_tok",
                 fmt::format("the chosen groups hold {} experts", config_.topk_group * group_size));
  }
}

void Parser::ParseDType() {
  ConfigReader& reader =
      text_.Find("dtype") == nullptr && text_.Find("torch_dtype") == nullptr ? outer_ : text_;
  const std::string_view key = reader.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string name = reader.Choice(key, {"bfloat16", "float16", "float32"},
                                         R"("bfloat16", "float16" or "float32" is needed)");
  config_.dtype = name == "float32" ? DType::kF32 : name == "float16" ? DType::kF16 : DType::kBF16;
}

void Parser::ParseQuantization() {
  constexpr std::string_view kKey = "quantization_config";
  ConfigReader& reader = text_.Find(kKey) != nullptr ? text_ : outer_;
  const json* object = reader.Find(kKey);
  if (object == nullptr) return;
  if (!object->is_object()) {
    reader.Refuse(kKey, "an object or null is needed");
    return;
  }
  ConfigReader quantization(*object, "quantization_config", problems_);
  config_.quantization.method = quantization.String("quant_method");
  if (config_.quantization.method != "fp8") return;  // OpenCheckpoint refuses it; shapes are known
  quantization.Choice("fmt", {"e4m3"}, "\"e4m3\" is supported", "e4m3");
  const json* block = quantization.Find("weight_block_size");
  const auto is_size = [](const json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
           value.get<uint64_t>() <= 65536;
  };
  if (block == nullptr || !block->is_array() || block->size() != 2 ||
      !std::all_of(block->begin(), block->end(), is_size)) {
    quantization.Refuse("weight_block_size", "rows and columns of a block are needed: [128, 128]");
    return;
  }
  config_.quantization.block_rows = (*block)[0].get<int64_t>();
  config_.quantization.block_cols = (*block)[1].get<int64_t>();
}

/// Reads bos_token_id and eos_token_id; keys that are missing leave what was there before.
void Parser::ParseTokens(ConfigReader& reader) {
  const int64_t last = config_.vocab_size - 1;
  if (reader.Find("bos_token_id") != nullptr) {
    config_.bos_token_id = static_cast<int32_t>(reader.Integer("bos_token_id", 0, last));
  }
  const json* eos = reader.Find("eos_token_id");
  if (eos == nullptr) return;
  config_.eos_token_ids.clear();
  const json list = eos->is_array() ? *eos : json::array({*eos});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(last)) {
      reader.Refuse("eos_token_id", fmt::format("token ids from 0 to {} are needed", last));
      return;
    }
    config_.eos_token_ids.push_back(id.get<int32_t>());
  }
}

void Parser::ParseGenerationConfig(const json& generation) {
  ConfigReader reader(generation, "generation_config.json", problems_);
  ParseTokens(reader);
  if (reader.Find("temperature") != nullptr) {
    config_.default_temperature = reader.Number("temperature", 0, 1000);
  }
  if (reader.Find("top_p") != nullptr) config_.default_top_p = reader.Number("top_p", 0, 1);
  if (reader.Find("top_k") != nullptr) {
    config_.default_top_k = reader.Integer("top_k", -1, INT32_MAX);
  }
}

void Parser::CheckParameterCount() {
  const ModelConfig& c = config_;
  const auto hidden = static_cast<double>(c.hidden_size);
  const auto heads = static_cast<double>(c.num_attention_heads);
  const auto layers = static_cast<double>(c.num_hidden_layers + c.num_nextn_predict_layers);
  const double attention = hidden * heads * static_cast<double>(c.v_head_dim) +
                           std::max(hidden, static_cast<double>(c.q_lora_rank)) * heads *
                               static_cast<double>(c.qk_head_dim()) +
                           static_cast<double>(c.kv_lora_rank) * heads *
                               static_cast<double>(c.qk_nope_head_dim + c.v_head_dim);
  const double feed_forward =
      3 * hidden *
      std::max(static_cast<double>(c.intermediate_size),
               static_cast<double>(c.n_routed_experts + c.n_shared_experts) *
                   static_cast<double>(c.moe_intermediate_size));
  const double total =
      2 * hidden * static_cast<double>(c.vocab_size) + layers * (attention + feed_forward);
  if (problems_.empty() && total > kMaxParameters) {
    problems_.push_back(fmt::format(
        "the sizes multiply to about {:.1e} parameters, at most {:.0e} make sense; check "
        "\"hidden_size\", \"num_hidden_layers\", the head and expert counts and dimensions",
        total, kMaxParameters));
  }
}

json ParseObject(std::string_view text, const std::string& where) {
  json value = ParseJson(text, where);
  if (!value.is_object()) throw InvalidArgument("{}: is {}, not an object", where, Shown(value));
  return value;
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view config_json,
                             std::optional<std::string_view> generation_config_json,
                             std::string_view where) {
  const json config = ParseObject(config_json, std::string(where));
  const auto [text, model] = FindLanguageModel(config, where);
  Parser parser(config, *text, *model);
  parser.Parse();
  if (generation_config_json) {
    parser.ParseGenerationConfig(ParseObject(
        *generation_config_json, fmt::format("{}: generation_config.json beside it", where)));
  }
  if (!parser.problems().empty()) {
    throw InvalidArgument("{}: {}", where, fmt::join(parser.problems(), "; "));
  }
  const std::vector<std::string> unread = parser.UnreadKeys();
  if (!unread.empty()) spdlog::debug("{}: not read: {}", where, fmt::join(unread, ", "));
  return parser.Take();
}

}  // namespace outrider
