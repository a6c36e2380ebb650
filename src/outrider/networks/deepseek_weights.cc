#include "outrider/networks/deepseek_weights.h"

#include <string>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"

namespace outrider {

void DeclareMlaAttention(WeightLoader& loader, const MlaSpec& a, int64_t input, int64_t output,
                         MlaWeights* w, const std::string& prefix, std::string_view output_name) {
  const int64_t query = a.heads * a.query_width();
  const WeightLoader::NamedMatrix kv_a = {&w->kv_a, prefix + "kv_a_proj_with_mqa.weight",
                                          a.latent + a.rope};
  if (a.q_lora > 0) {
    loader.SideBySide({{&w->q_a, prefix + "q_a_proj.weight", a.q_lora}, kv_a}, input);
    loader.Vector(&w->q_a_norm, prefix + "q_a_layernorm.weight", a.q_lora);
    loader.Matrix(&w->q_b, prefix + "q_b_proj.weight", query, a.q_lora, {.rows = Cut::kHeads});
  } else {
    loader.SideBySide({{&w->q_a, prefix + "q_proj.weight", query, {.rows = Cut::kHeads}}, kv_a},
                      input);
  }
  loader.Vector(&w->kv_a_norm, prefix + "kv_a_layernorm.weight", a.latent);
  loader.SplitKvUp(&w->kv_up, prefix + "kv_b_proj.weight",
                   {.heads = a.heads, .nope = a.nope, .value = a.value, .latent = a.latent});
  loader.Matrix(&w->o, fmt::format("{}{}.weight", prefix, output_name), output, a.heads * a.value,
                {.rows = Cut::kRows, .input = Cut::kHeads});
  if (!a.indexer) return;
  const std::string indexer = prefix + "indexer.";
  SparseIndexerWeights& weights = w->indexer;
  loader.Matrix(&weights.queries, indexer + "wq_b.weight", a.indexer->heads * a.indexer->dim,
                a.q_lora);
  loader.Matrix(&weights.keys, indexer + "wk.weight", a.indexer->dim, input);
  loader.Vector(&weights.norm, indexer + "k_norm.weight", a.indexer->dim);
  loader.Vector(&weights.norm_bias, indexer + "k_norm.bias", a.indexer->dim);
  loader.ExactMatrix(&weights.weights, indexer + "weights_proj.weight", a.indexer->heads, input);
}

namespace {

void DeclareMoe(WeightLoader& loader, const MoeSpec& moe, int64_t hidden, MoeWeights* w,
                const std::string& prefix) {
  const RouterSpec& router = moe.router;
  loader.UnquantizedMatrix(&w->router, prefix + "gate.weight", router.experts, hidden);
  if (router.method == RouterMethod::kNoAuxTc) {
    loader.Vector(&w->router_bias, prefix + "gate.e_score_correction_bias", router.experts);
  }
  WeightLoader::Experts experts = {.width = moe.width,
                                   .shared = MlpTensors::At(prefix + "shared_experts."),
                                   .shared_width = moe.shared_width,
                                   .hidden = hidden};
  for (int64_t e = 0; e < router.experts; ++e) {
    experts.routed.push_back(MlpTensors::At(fmt::format("{}experts.{}.", prefix, e)));
  }
  loader.MoeExperts(&w->experts, experts);
}

std::string LayerPrefix(const ModelConfig& c, int64_t index) {
  return fmt::format("{}model.layers.{}.", c.tensor_prefix, index);
}

void DeclareLayer(WeightLoader& loader, const ModelConfig& c, int64_t index, DecoderLayer* layer) {
  const std::string prefix = LayerPrefix(c, index);
  layer->spec = OfOneRank(c.layer(index), loader.ranks());
  layer->norm_eps = static_cast<float>(c.rms_norm_eps);
  LayerWeights* w = &layer->weights;
  loader.Vector(&w->input_norm, prefix + "input_layernorm.weight", c.hidden_size);
  DeclareMlaAttention(loader, std::get<MlaSpec>(c.layer(index).attention), c.hidden_size,
                      c.hidden_size, &w->attention.emplace<MlaWeights>(), prefix + "self_attn.");
  loader.Vector(&w->post_attention_norm, prefix + "post_attention_layernorm.weight", c.hidden_size);
  if (const MoeSpec* moe = layer->spec.moe()) {
    DeclareMoe(loader, *moe, c.hidden_size, &w->mlp.emplace<MoeWeights>(), prefix + "mlp.");
  } else {
    MlpWeights& mlp = w->mlp.emplace<MlpWeights>();
    loader.Mlp(&mlp.gate_up, &mlp.down, MlpTensors::At(prefix + "mlp."), layer->spec.dense()->width,
               c.hidden_size);
  }
}

}  // namespace

void DeepSeekWeights::Declare(WeightLoader& loader, const ModelConfig& c, int num_modules) {
  const std::string embedding_name = c.tensor_prefix + "model.embed_tokens.weight";
  loader.Table(&embedding, embedding_name, c.vocab_size, c.hidden_size);
  layers.resize(c.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    DeclareLayer(loader, c, static_cast<int64_t>(i), &layers[i]);
  }
  loader.Vector(&final_norm, c.tensor_prefix + "model.norm.weight", c.hidden_size);
  const std::string head_name = c.tensor_prefix + "lm_head.weight";
  const std::string& head_in_use = c.tie_word_embeddings ? embedding_name : head_name;
  loader.Matrix(&head, head_in_use, c.vocab_size, c.hidden_size, {.rows = Cut::kRows});
  if (c.tie_word_embeddings) {
    loader.CopyIfThere(head_name, embedding_name, c.vocab_size, c.hidden_size, loader.kTied);
  }
  mtp.resize(static_cast<size_t>(num_modules));
  for (int m = 0; m < num_modules; ++m) {
    const int64_t index = c.num_hidden_layers() + m;
    const std::string prefix = LayerPrefix(c, index);
    MtpWeights& module = mtp[static_cast<size_t>(m)];
    loader.Vector(&module.embedding_norm, prefix + "enorm.weight", c.hidden_size);
    loader.Vector(&module.hidden_norm, prefix + "hnorm.weight", c.hidden_size);
    loader.Matrix(&module.projection, prefix + "eh_proj.weight", c.hidden_size, 2 * c.hidden_size,
                  {.rows = Cut::kRows});
    DeclareLayer(loader, c, index, &module.layer);
    loader.Vector(&module.output_norm, prefix + "shared_head.norm.weight", c.hidden_size);
    // Some checkpoints repeat the target's in every module.
    loader.CopyIfThere(prefix + "embed_tokens.weight", embedding_name, c.vocab_size, c.hidden_size,
                       loader.kShared);
    loader.CopyIfThere(prefix + "shared_head.head.weight", head_in_use, c.vocab_size, c.hidden_size,
                       loader.kShared);
  }
}

}  // namespace outrider
