#include "outrider/checkpoint/hybrid_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr HybridNames kKimiLinearNames = {.embedding = "model.embed_tokens.weight",
                                          .attention = "self_attn.",
                                          .decay = "f",
                                          .gate = "g",
                                          .latent_output = "o_proj",
                                          .experts = "block_sparse_moe.",
                                          .router_bias = "gate.e_score_correction_bias",
                                          .numbers_experts = true};
constexpr HybridNames kBailingNames = {.embedding = "model.word_embeddings.weight",
                                       .attention = "attention.",
                                       .decay = "f",
                                       .gate = "g",
                                       .latent_output = "dense",
                                       .experts = "mlp.",
                                       .router_bias = "gate.expert_bias",
                                       .numbers_experts = false};

/// Tensors of an MTP module, beside those of a layer.
constexpr std::array<std::string_view, 4> kOfModules = {"eh_proj.weight", "enorm.weight",
                                                        "hnorm.weight", "final_layernorm.weight"};

/// Takes `prefix` off the front of `text`, if it is there.
bool Skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Takes "123." off the front of `text`.
std::optional<int64_t> SkipNumber(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return Skip(text, ".") ? std::optional(number) : std::nullopt;
}

template <size_t kCount>
bool IsOneOf(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::ranges::find(names, name) != names.end();
}

bool HasProjection(std::string_view name, std::string_view letter, int64_t rank) {
  if (!Skip(name, letter)) return false;
  return rank > 0 ? name == "_a_proj.weight" || name == "_b_proj.weight" : name == "_proj.weight";
}

bool HasKda(const KdaSpec& kda, const HybridNames& names, std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames = {
      "q_proj.weight",   "k_proj.weight",   "v_proj.weight", "q_conv1d.weight",
      "k_conv1d.weight", "v_conv1d.weight", "b_proj.weight", "o_proj.weight",
      "o_norm.weight",   "A_log",           "dt_bias"};
  return IsOneOf(name, kNames) || HasProjection(name, names.decay, kda.decay_rank) ||
         HasProjection(name, names.gate, kda.gate_rank);
}

bool HasMla(const MlaSpec& mla, const HybridNames& names, std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"kv_a_proj_with_mqa.weight",
                                                      "kv_a_layernorm.weight", "kv_b_proj.weight"};
  constexpr std::array<std::string_view, 3> kLowRank = {"q_a_proj.weight", "q_a_layernorm.weight",
                                                        "q_b_proj.weight"};
  if (IsOneOf(name, kNames)) return true;
  if (name == "g_proj.weight") return mla.gates_heads;
  if (Skip(name, names.latent_output)) return name == ".weight";
  return mla.q_lora > 0 ? IsOneOf(name, kLowRank) : name == "q_proj.weight";
}

bool IsMlp(std::string_view name, bool numbered) {
  constexpr std::array<std::string_view, 3> kNamed = {"gate_proj.weight", "up_proj.weight",
                                                      "down_proj.weight"};
  constexpr std::array<std::string_view, 3> kNumbered = {"w1.weight", "w2.weight", "w3.weight"};
  return IsOneOf(name, numbered ? kNumbered : kNamed);
}

bool HasExperts(const MoeSpec& moe, const HybridNames& names, std::string_view name) {
  if (name == "gate.weight" || name == names.router_bias) return true;
  if (Skip(name, "shared_experts.")) return moe.shared_width > 0 && IsMlp(name, false);
  if (!Skip(name, "experts.")) return false;
  const std::optional<int64_t> expert = SkipNumber(name);
  return expert && *expert < moe.router.experts && IsMlp(name, names.numbers_experts);
}

}  // namespace

const HybridNames& HybridNamesOf(ModelFamily family) {
  OUTRIDER_CHECK(IsHybrid(family));
  return family == ModelFamily::kKimiLinear ? kKimiLinearNames : kBailingNames;
}

bool HasHybridTensor(const ModelConfig& config, std::string_view name) {
  const HybridNames& names = HybridNamesOf(config.family);
  if (name == "lm_head.weight") return !config.tie_word_embeddings;
  if (name == names.embedding || name == "model.norm.weight") return true;
  if (!Skip(name, "model.layers.")) return false;
  const std::optional<int64_t> index = SkipNumber(name);
  const int64_t trunk = config.num_hidden_layers();
  if (!index || *index >= trunk + config.num_nextn_predict_layers) return false;
  if (name == "input_layernorm.weight" || name == "post_attention_layernorm.weight") return true;
  if (*index >= trunk && IsOneOf(name, kOfModules)) return true;
  const LayerSpec& layer = config.layer(*index);
  if (Skip(name, names.attention)) {
    const auto* kda = std::get_if<KdaSpec>(&layer.attention);
    return kda != nullptr ? HasKda(*kda, names, name)
                          : HasMla(std::get<MlaSpec>(layer.attention), names, name);
  }
  if (const MoeSpec* moe = layer.moe()) {
    return Skip(name, names.experts) && HasExperts(*moe, names, name);
  }
  return Skip(name, "mlp.") && IsMlp(name, false);
}

}  // namespace outrider
