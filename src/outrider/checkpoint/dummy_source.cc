// MakeDummyWeights: random numbers in place of a checkpoint.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/dummy_tensor.h"
#include "outrider/checkpoint/dummy_values.h"
#include "outrider/checkpoint/hybrid_names.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {
namespace {

/// FNV-1a of the name, mixed with the seed: where the tensor's stream of numbers starts.
uint64_t StreamKey(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return SplitMix(SplitMix(seed + kSplitMixStep) ^ hash);
}

/// Takes `prefix` off the front of `text`, if it is there.
bool Consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Takes "123." off the front of `text`.
std::optional<int64_t> ConsumeNumber(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(end - text.data());
  return Consume(text, ".") ? std::optional(number) : std::nullopt;
}

bool IsMlpWeight(std::string_view name) {
  return name == "gate_proj.weight" || name == "up_proj.weight" || name == "down_proj.weight";
}

bool HasAttention(const MlaSpec& mla, std::string_view name) {
  if (Consume(name, "indexer.")) {
    return mla.indexer &&
           (name == "wq_b.weight" || name == "wk.weight" || name == "k_norm.weight" ||
            name == "k_norm.bias" || name == "weights_proj.weight");
  }
  const bool low_rank = mla.q_lora > 0;
  if (name == "q_proj.weight") return !low_rank;
  if (name == "q_a_proj.weight" || name == "q_a_layernorm.weight" || name == "q_b_proj.weight") {
    return low_rank;
  }
  return name == "kv_a_proj_with_mqa.weight" || name == "kv_a_layernorm.weight" ||
         name == "kv_b_proj.weight" || name == "o_proj.weight";
}

bool HasAttention(const GqaSpec& gqa, std::string_view name) {
  if (name == "g_proj.weight") return gqa.gates_heads;
  if (name == "q_norm.weight" || name == "k_norm.weight") return gqa.norms_heads;
  return name == "q_proj.weight" || name == "k_proj.weight" || name == "v_proj.weight" ||
         name == "o_proj.weight";
}

/// Of either kind that has names in "self_attn.".
bool HasSelfAttention(const LayerSpec& layer, std::string_view name) {
  const auto* gqa = std::get_if<GqaSpec>(&layer.attention);
  return gqa != nullptr ? HasAttention(*gqa, name)
                        : HasAttention(std::get<MlaSpec>(layer.attention), name);
}

/// "attn.compressor.wkv.weight" and the like, of a layer or an MTP module.
bool HasCompressor(std::string_view name) {
  return name == "wkv.weight" || name == "wgate.weight" || name == "ape" || name == "norm.weight";
}

bool HasCompressedAttention(const CompressedSpec& a, std::string_view name) {
  if (Consume(name, "compressor.")) return a.ratio > 0 && HasCompressor(name);
  if (Consume(name, "indexer.")) {
    if (a.index_heads == 0) return false;
    if (Consume(name, "compressor.")) return HasCompressor(name);
    return name == "wq_b.weight" || name == "weights_proj.weight";
  }
  return name == "wq_a.weight" || name == "wq_b.weight" || name == "wkv.weight" ||
         name == "wo_a.weight" || name == "wo_b.weight" || name == "q_norm.weight" ||
         name == "kv_norm.weight" || name == "attn_sink";
}

/// A gated MLP's three matrices.
bool IsNumberedMlpWeight(std::string_view name) {
  return name == "w1.weight" || name == "w2.weight" || name == "w3.weight";
}

bool HasNumberedMoe(const MoeSpec& moe, std::string_view name) {
  const bool by_token = moe.router.method == RouterMethod::kTokenTable;
  if (name == "gate.weight") return true;
  if (name == "gate.tid2eid") return by_token;
  if (name == "gate.bias") return !by_token;
  if (Consume(name, "shared_experts.")) return moe.shared_width > 0 && IsNumberedMlpWeight(name);
  if (!Consume(name, "experts.")) return false;
  const std::optional<int64_t> expert = ConsumeNumber(name);
  return expert && *expert < moe.router.experts && IsNumberedMlpWeight(name);
}

/// "hc_PLACE_fn", "hc_PLACE_base" or "hc_PLACE_scale".
bool IsHyperConnection(std::string_view name, std::string_view place) {
  return Consume(name, "hc_") && Consume(name, place) &&
         (name == "_fn" || name == "_base" || name == "_scale");
}

/// What a stage of a DSpark drafter has beside its layer.
bool HasDSpark(const DSparkSpec& dspark, int64_t stage, std::string_view name) {
  if (stage == 0 && (name == "main_proj.weight" || name == "main_norm.weight")) return true;
  if (stage != dspark.stages - 1) return false;
  return name == "norm.weight" || IsHyperConnection(name, "head") ||
         name == "markov_head.markov_w1.weight" || name == "markov_head.markov_w2.weight" ||
         name == "confidence_head.proj.weight";
}

bool HasDeepSeekV4(const ModelConfig& config, std::string_view name) {
  if (name == "head.weight") return !config.tie_word_embeddings;
  if (name == "embed.weight" || name == "norm.weight" || IsHyperConnection(name, "head")) {
    return true;
  }
  const bool of_module = Consume(name, "mtp.");
  if (!of_module && !Consume(name, "layers.")) return false;
  const std::optional<int64_t> index = ConsumeNumber(name);
  const int64_t modules = config.dspark ? config.dspark->stages : config.num_nextn_predict_layers;
  if (!index || *index >= (of_module ? modules : config.num_hidden_layers())) return false;
  const LayerSpec& layer = of_module ? config.mtp_layer : config.layer(*index);
  if (Consume(name, "attn.")) {
    return HasCompressedAttention(std::get<CompressedSpec>(layer.attention), name);
  }
  if (Consume(name, "ffn.")) return HasNumberedMoe(*layer.moe(), name);
  if (name == "attn_norm.weight" || name == "ffn_norm.weight" || IsHyperConnection(name, "attn") ||
      IsHyperConnection(name, "ffn")) {
    return true;
  }
  if (of_module && config.dspark) return HasDSpark(*config.dspark, *index, name);
  return of_module &&
         (name == "e_proj.weight" || name == "h_proj.weight" || name == "enorm.weight" ||
          name == "hnorm.weight" || name == "norm.weight" || IsHyperConnection(name, "head"));
}

/// "fc_norm.N.weight", of a drafter.
bool IsTapNorm(std::string_view name, int64_t num_taps) {
  if (!Consume(name, "fc_norm.")) return false;
  const std::optional<int64_t> tap = ConsumeNumber(name);
  return tap && *tap < num_taps && name == "weight";
}

bool HasEagle3(const ModelConfig& config, std::string_view name) {
  const Eagle3Spec& eagle = *config.eagle3;
  if (name == "fc.weight" || name == "norm.weight" || name == "lm_head.weight") return true;
  if (name == "d2t") return eagle.draft_vocab_size < config.vocab_size;
  if (IsTapNorm(name, eagle.num_taps)) return eagle.norms_taps;
  if (!Consume(name, "layers.0.")) return false;
  if (Consume(name, "self_attn.")) return HasSelfAttention(config.layers.front(), name);
  if (Consume(name, "mlp.")) return IsMlpWeight(name);
  return name == "input_layernorm.weight" || name == "hidden_norm.weight" ||
         name == "post_attention_layernorm.weight";
}

bool HasMlp(const LayerSpec& layer, std::string_view name) {
  const MoeSpec* moe = layer.moe();
  if (moe == nullptr) return IsMlpWeight(name);
  if (name == "gate.weight") return true;
  if (name == "gate.e_score_correction_bias") return moe->router.method == RouterMethod::kNoAuxTc;
  if (Consume(name, "shared_experts.")) return moe->shared_width > 0 && IsMlpWeight(name);
  if (!Consume(name, "experts.")) return false;
  const std::optional<int64_t> expert = ConsumeNumber(name);
  return expert && *expert < moe->router.experts && IsMlpWeight(name);
}

/// Which tensors the publishers of DeepSeek-V4 store as codes, if the config says "fp8".
std::optional<StoredFormat> PublishedV4Format(const ModelConfig& config, std::string_view name) {
  static constexpr std::string_view kEnds[] = {
      ".attn.wq_a.weight", ".wq_b.weight",   ".attn.wkv.weight", ".wo_a.weight",
      ".wo_b.weight",      ".e_proj.weight", ".h_proj.weight",   ".main_proj.weight"};
  if (config.quantization.method != "fp8") return std::nullopt;
  if (name.find(".ffn.experts.") != name.npos) return StoredFormat::kMxfp4;
  if (name.find(".ffn.shared_experts.") != name.npos ||
      std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); })) {
    return StoredFormat::kFp8Block;
  }
  return std::nullopt;
}

class DummySource : public WeightSource {
 public:
  DummySource(ModelConfig config, uint64_t seed) : config_(std::move(config)), seed_(seed) {}

  bool Has(std::string_view name) const override;

  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    std::span<const int64_t> shape = tensor.shape;
    std::string name = tensor.name;
    if (tensor.index) {
      shape = shape.subspan(1);
      name += fmt::format(".{}", *tensor.index);
    }
    DummyStream stream = {.key = StreamKey(seed_, name)};
    if (tensor.holds_integers && config_.eagle3) return MakeDummyTensor(shape, stream);  // all 0
    if (tensor.holds_integers) {
      OUTRIDER_CHECK(config_.family == ModelFamily::kDeepSeekV4, "experts by token");
      return MakeDummyChoices(shape, stream.key, config_.mtp_layer.moe()->router.experts);
    }
    if (shape.size() >= 2) {
      const double deviation = name.ends_with("embed_tokens.weight") || name == "embed.weight" ||
                                       name.ends_with("word_embeddings.weight")
                                   ? 1.0
                                   : 1.0 / std::sqrt(static_cast<double>(shape.back()));
      // Half of the width of a uniform distribution.
      stream.half_width = static_cast<float>(deviation * std::numbers::sqrt3);
      if (const std::optional<StoredFormat> format = StoredAs(tensor.name, shape)) {
        return MakeDummyCodes(shape, stream, *format, config_.quantization);
      }
    } else if (name.ends_with("dt_bias")) {  // decays such that a state remembers
      stream.center = -3;
      stream.half_width = 1;
    } else if (!name.ends_with("bias")) {
      stream.center = 1;
      stream.half_width = 1.0F / 16;
    }
    return MakeDummyTensor(shape, stream);
  }

  void Check(std::span<const ExpectedTensor>, FunctionRef<bool(std::string_view)>) const override {}
  std::string where() const override { return "random weights"; }
  std::vector<std::string> names() const override { return {}; }

 private:
  /// How a matrix is stored, if as codes: as the config says, or as DeepSeek-V4 is published.
  std::optional<StoredFormat> StoredAs(std::string_view name, std::span<const int64_t> shape) const;
  std::optional<StoredFormat> DeclaredFormat(std::string_view name) const;

  ModelConfig config_;
  uint64_t seed_;
};

std::optional<StoredFormat> DummySource::StoredAs(std::string_view name,
                                                  std::span<const int64_t> shape) const {
  const bool v4 = config_.family == ModelFamily::kDeepSeekV4;
  const std::optional<StoredFormat> format =
      v4 ? PublishedV4Format(config_, name) : DeclaredFormat(name);
  const bool fits = format && shape.size() == 2 && TakesColumns(*format, shape.back());
  return fits ? format : std::nullopt;
}

std::optional<StoredFormat> DummySource::DeclaredFormat(std::string_view name) const {
  constexpr std::string_view kWeight = ".weight";
  const Quantization& quantization = config_.quantization;
  if (!name.ends_with(kWeight)) return std::nullopt;
  name.remove_suffix(kWeight.size());
  // These are no linear layers.
  if (name.ends_with("embed_tokens") || name.ends_with("word_embeddings") ||
      name.ends_with(".gate") || name.ends_with("_conv1d")) {
    return std::nullopt;
  }
  // Published models in FP8 blocks leave these as they are without naming them.
  constexpr std::array<std::string_view, 4> kNotInBlocks = {"lm_head", ".eh_proj", ".weights_proj",
                                                            ".shared_head.output"};
  if (quantization.method == "fp8" &&
      std::ranges::any_of(kNotInBlocks, [&](auto end) { return name.ends_with(end); })) {
    return std::nullopt;
  }
  std::string_view without_prefix = name;
  Consume(without_prefix, config_.tensor_prefix);
  if (!quantization.Covers(name) || !quantization.Covers(without_prefix)) return std::nullopt;
  const bool routed = name.find(".experts.") != std::string_view::npos;
  return routed && quantization.experts_format ? quantization.experts_format : quantization.format;
}

bool DummySource::Has(std::string_view name) const {
  if (config_.family == ModelFamily::kDeepSeekV4) return HasDeepSeekV4(config_, name);
  if (config_.family == ModelFamily::kEagle3) return HasEagle3(config_, name);
  if (!Consume(name, config_.tensor_prefix)) return false;
  if (IsHybrid(config_.family)) return HasHybridTensor(config_, name);
  if (name == "lm_head.weight") return !config_.tie_word_embeddings;
  if (!Consume(name, "model.")) return false;
  if (name == "embed_tokens.weight" || name == "norm.weight") return true;
  if (!Consume(name, "layers.")) return false;
  const std::optional<int64_t> layer = ConsumeNumber(name);
  if (!layer || *layer >= config_.num_hidden_layers() + config_.num_nextn_predict_layers) {
    return false;
  }
  const LayerSpec& spec = config_.layer(*layer);
  if (Consume(name, "self_attn.")) return HasSelfAttention(spec, name);
  if (config_.family == ModelFamily::kStep3p5 && spec.moe() != nullptr) {
    if (Consume(name, "share_expert.")) return IsMlpWeight(name);
    if (Consume(name, "moe.")) {
      return IsMlpWeight(name) || name == "gate.weight" || name == "router_bias";
    }
  } else if (Consume(name, "mlp.")) {
    return HasMlp(spec, name);
  }
  if (name == "input_layernorm.weight" || name == "post_attention_layernorm.weight") return true;
  if (*layer < config_.num_hidden_layers()) return false;
  if (name == "eh_proj.weight" || name == "enorm.weight" || name == "hnorm.weight") return true;
  // MTP modules share the target's embedding, and its head but for Step-3.5.
  return config_.family == ModelFamily::kStep3p5
             ? name == "transformer.shared_head.norm.weight" ||
                   name == "transformer.shared_head.output.weight"
             : name == "shared_head.norm.weight";
}

}  // namespace

std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config, uint64_t seed) {
  CheckMethod("config.json", config.quantization.method);
  return std::make_unique<DummySource>(config, seed);
}

}  // namespace outrider
