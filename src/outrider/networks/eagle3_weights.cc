#include "outrider/networks/eagle3_weights.h"

#include <array>
#include <string>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/networks/deepseek_weights.h"
#include "outrider/networks/step3p5_weights.h"

namespace outrider {

namespace {

/// A drafter's names have this in front of all of them, or nothing.
constexpr std::string_view kModel = "model.";

/// What precedes the names of the layer's tensors.
std::string LayerPrefix(const WeightSource& source) {
  for (const char* prefix : {"midlayer.", "model.layers.0.", "model.midlayer."}) {
    if (source.Has(std::string(prefix) + "hidden_norm.weight")) return prefix;
  }
  return "layers.0.";
}

}  // namespace

bool HasOwnEmbedding(const WeightSource& source) {
  return source.Has("embed_tokens.weight") || source.Has("model.embed_tokens.weight");
}

void Eagle3Weights::Declare(WeightLoader& loader, const ModelConfig& c) {
  layer.spec = c.layers.front();
  layer.norm_eps = static_cast<float>(c.rms_norm_eps);
  const Eagle3Spec& eagle = *c.eagle3;
  const WeightSource& source = loader.source();
  const std::string prefix = LayerPrefix(source);
  const std::string model(prefix.starts_with(kModel) ? kModel : "");
  const int64_t hidden = c.hidden_size;
  const std::string table = model + "embed_tokens.weight";
  if (source.Has(table)) loader.Table(&embedding.emplace(), table, c.vocab_size, hidden);
  tap_norms.resize(eagle.norms_taps ? static_cast<size_t>(eagle.num_taps) : 0);
  for (size_t t = 0; t < tap_norms.size(); ++t) {
    loader.Vector(&tap_norms[t], fmt::format("{}fc_norm.{}.weight", model, t),
                  eagle.target_hidden_size);
  }
  loader.Matrix(&fc, model + "fc.weight", hidden, eagle.num_taps * eagle.target_hidden_size,
                {.rows = Cut::kRows});
  LayerWeights& w = layer.weights;
  loader.Vector(&w.input_norm, prefix + "input_layernorm.weight", hidden);
  loader.Vector(&hidden_norm, prefix + "hidden_norm.weight", hidden);
  loader.Vector(&w.post_attention_norm, prefix + "post_attention_layernorm.weight", hidden);
  const std::string attention = prefix + "self_attn.";
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.spec.attention)) {
    DeclareGqaMatrices(loader, *gqa, 2 * hidden, hidden, &w.attention.emplace<GqaWeights>(),
                       attention);
  } else {
    DeclareMlaAttention(loader, std::get<MlaSpec>(layer.spec.attention), 2 * hidden, hidden,
                        &w.attention.emplace<MlaWeights>(), attention);
  }
  MlpWeights& mlp = w.mlp.emplace<MlpWeights>();
  loader.Mlp(&mlp.gate_up, &mlp.down, MlpTensors::At(prefix + "mlp."), layer.spec.dense()->width,
             hidden);
  loader.Vector(&final_norm, model + "norm.weight", hidden);
  loader.Matrix(&head, "lm_head.weight", eagle.draft_vocab_size, hidden, {.rows = Cut::kRows});
  loader.Check([](std::string_view name) {
    return name == "d2t" || name == "t2d" || name.ends_with(".rotary_emb.inv_freq");
  });
  if (!source.Has("d2t") && eagle.draft_vocab_size < c.vocab_size) {
    throw InvalidArgument(
        "{}: has no tensor d2t, which says which of the target's {} tokens the drafter's {} are",
        source.where(), c.vocab_size, eagle.draft_vocab_size);
  }
}

void Eagle3Weights::ReadTokens(const WeightSource& source, const ModelConfig& c) {
  if (!source.Has("d2t")) return;
  const int64_t size = c.eagle3->draft_vocab_size;
  std::vector<float> added(static_cast<size_t>(size));
  source.Open({.name = "d2t", .shape = {size}, .holds_integers = true})
      ->ReadRows(0, 1, added.data());
  std::vector<bool> taken(static_cast<size_t>(c.vocab_size));
  for (int64_t i = 0; i < size; ++i) {
    const float token = static_cast<float>(i) + added[static_cast<size_t>(i)];
    const bool exists = token >= 0 && token < static_cast<float>(c.vocab_size);
    if (!exists || taken[static_cast<size_t>(token)]) {
      throw InvalidArgument("{}: d2t makes draft token {} the target's token {}, {}",
                            source.where(), i, static_cast<int64_t>(token),
                            exists ? "as another one before it"
                                   : fmt::format("which is none of 0 to {}", c.vocab_size - 1));
    }
    taken[static_cast<size_t>(token)] = true;
    tokens.push_back(static_cast<int32_t>(token));
  }
}

}  // namespace outrider
