// config.json to the part of ModelConfig that all families have; the family's own parser
// (family_parsers.h) makes the layers.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/family_parsers.h"
#include "outrider/checkpoint/model_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kMostLayers = 4096;
constexpr double kMaxParameters = 1e14;  // far above any model, far below overflow

struct KnownModel {
  std::string_view model_type;
  ModelFamily family;
  std::string_view architecture;
  LayerParser* parse_layers;
};
constexpr std::array<KnownModel, 10> kKnownModels{{
    {"deepseek_v2", ModelFamily::kDeepSeekV2, "DeepseekV2ForCausalLM", ParseDeepSeekLayers},
    {"deepseek_v3", ModelFamily::kDeepSeekV3, "DeepseekV3ForCausalLM", ParseDeepSeekLayers},
    {"deepseek_v32", ModelFamily::kDeepSeekV3, "DeepseekV32ForCausalLM", ParseDeepSeekLayers},
    {"deepseek_v4", ModelFamily::kDeepSeekV4, "DeepseekV4ForCausalLM", ParseDeepSeekV4Layers},
    {"kimi_k2", ModelFamily::kDeepSeekV3, "DeepseekV3ForCausalLM", ParseDeepSeekLayers},
    {"glm4_moe_lite", ModelFamily::kGlm4MoeLite, "Glm4MoeLiteForCausalLM", ParseDeepSeekLayers},
    {"glm_moe_dsa", ModelFamily::kGlm4MoeLite, "GlmMoeDsaForCausalLM", ParseDeepSeekLayers},
    {"step3p5", ModelFamily::kStep3p5, "Step3p5ForCausalLM", ParseStep3p5Layers},
    {"kimi_linear", ModelFamily::kKimiLinear, "KimiLinearForCausalLM", ParseKimiLinearLayers},
    {"bailing_hybrid", ModelFamily::kBailingHybrid, "BailingMoeV3ForCausalLM",
     ParseBailingHybridLayers},
}};

/// Drafters have the model_type of the network that their attention is of, or of the one that they
/// were trained for.
constexpr auto kKnownDrafters = std::to_array<KnownModel>({
    {"deepseek_v2", ModelFamily::kEagle3, "Eagle3DeepseekV2ForCausalLM", ParseEagle3Layer},
    {"deepseek_v3", ModelFamily::kEagle3, "Eagle3DeepseekV2ForCausalLM", ParseEagle3Layer},
    {"deepseek_v3", ModelFamily::kEagle3, "Eagle3DeepseekV3ForCausalLM", ParseEagle3Layer},
    {"kimi_k2", ModelFamily::kEagle3, "Eagle3DeepseekV2ForCausalLM", ParseEagle3Layer},
    {"llama", ModelFamily::kEagle3, "LlamaForCausalLMEagle3", ParseLlamaEagle3Layer},
    {"llama", ModelFamily::kEagle3, "Eagle3LlamaForCausalLM", ParseLlamaEagle3Layer},
    {"deepseek_v3", ModelFamily::kEagle3, "LlamaForCausalLMEagle3", ParseLlamaEagle3Layer},
    {"kimi_k2", ModelFamily::kEagle3, "LlamaForCausalLMEagle3", ParseLlamaEagle3Layer},
});

const KnownModel* FindModel(const json& object) {
  const auto it = object.find("model_type");
  if (it == object.end() || !it->is_string()) return nullptr;
  const auto architectures = object.find("architectures");
  for (const KnownModel& drafter : kKnownDrafters) {
    if (it->get_ref<const std::string&>() == drafter.model_type && architectures != object.end() &&
        *architectures == json::array({drafter.architecture})) {
      return &drafter;
    }
  }
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
  /// Says which of the language model's keys mean nothing here, and aloud those that may be
  /// misspelt.
  void LogUnreadKeys(std::string_view where) const;
  ModelConfig Take() { return std::move(config_); }

 private:
  void ParseArchitecture();
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

  config_.vocab_size = text_.Integer("vocab_size", 1, kMostOfADimension);
  config_.hidden_size = text_.Integer("hidden_size", 1, kMostOfADimension);
  config_.num_nextn_predict_layers = text_.Integer("num_nextn_predict_layers", 0, 64, 0);
  // Kimi-Linear is published with the tokenizer's word for it.
  const bool own_word =
      model_.family == ModelFamily::kKimiLinear && !text_.Contains("max_position_embeddings");
  config_.max_position_embeddings =
      text_.Integer(own_word ? "model_max_length" : "max_position_embeddings", 1, INT32_MAX);
  config_.tie_word_embeddings = text_.Boolean("tie_word_embeddings", false);
  const bool may_lack_eps = model_.family == ModelFamily::kStep3p5;  // its class has a default
  config_.rms_norm_eps =
      text_.Number("rms_norm_eps", 1e-12, 0.1, may_lack_eps ? std::optional(1e-5) : std::nullopt);

  model_.parse_layers({model_.family, model_.model_type, text_, problems_},
                      text_.Integer("num_hidden_layers", 1, kMostLayers), config_);
  ParseDType();
  ParseQuantization();
  ParseTokens(nested_ && text_.Find("eos_token_id") == nullptr ? outer_ : text_);
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
  ParseQuantizationConfig(*object, problems_, config_.quantization);
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
  if (reader.Find("min_p") != nullptr) config_.default_min_p = reader.Number("min_p", 0, 1);
  if (reader.Find("repetition_penalty") != nullptr) {
    config_.default_repetition_penalty = reader.Number("repetition_penalty", 0.01, 100);
  }
}

void Parser::LogUnreadKeys(std::string_view where) const {
  const std::vector<std::string> unread = text_.UnreadKeys();
  if (!unread.empty()) spdlog::debug("{}: not read: {}", where, fmt::join(unread, ", "));
  for (const std::string& key : unread) {
    if (const std::optional<std::string> nearest = text_.NearestMissingKey(key)) {
      spdlog::warn("{}: the key {} is not read; is \"{}\" meant?", where, Shown(json(key)),
                   *nearest);
    }
  }
}

double Double(int64_t n) { return static_cast<double>(n); }

/// Roughly the weights of a layer's attention.
double AttentionParameters(const MlaSpec& a, double hidden) {
  const double heads = Double(a.heads);
  return hidden * heads * Double(a.value) +
         std::max(hidden, Double(a.q_lora)) * heads * Double(a.query_width()) +
         Double(a.latent) * heads * Double(a.nope + a.value);
}

double AttentionParameters(const GqaSpec& a, double hidden) {
  return 2 * hidden * Double(a.heads + a.kv_heads) * Double(a.head_dim);
}

double AttentionParameters(const CompressedSpec& a, double hidden) {
  const double values = Double(a.heads) * Double(a.head_dim);
  return (hidden + values) * Double(a.q_lora) + hidden * Double(a.head_dim) +
         (values + hidden * Double(a.output_groups)) * Double(a.output_rank);
}

double AttentionParameters(const KdaSpec& a, double hidden) {
  const double width = Double(a.heads) * Double(a.head_dim);
  return 6 * hidden * width;
}

/// Roughly the weights of a layer.
double LayerParameters(const LayerSpec& layer, double hidden) {
  const double attention = std::visit(
      [hidden](const auto& spec) { return AttentionParameters(spec, hidden); }, layer.attention);
  const MoeSpec* moe = layer.moe();
  const double width =
      moe == nullptr ? Double(layer.dense()->width)
                     : Double(moe->router.experts) * Double(moe->width) + Double(moe->shared_width);
  return attention + 3 * hidden * width;
}

void Parser::CheckParameterCount() {
  const auto hidden = static_cast<double>(config_.hidden_size);
  double total = 2 * hidden * static_cast<double>(config_.vocab_size) +
                 static_cast<double>(config_.num_nextn_predict_layers) *
                     LayerParameters(config_.mtp_layer, hidden);
  for (const LayerSpec& layer : config_.layers) total += LayerParameters(layer, hidden);
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
  parser.LogUnreadKeys(where);
  return parser.Take();
}

}  // namespace outrider
