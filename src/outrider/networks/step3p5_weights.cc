#include "outrider/networks/step3p5_weights.h"

#include <string>

#include "outrider/checkpoint/rank_config.h"

namespace outrider {

namespace {

void DeclareNorm(WeightLoader& loader, const float** out, const std::string& name, int64_t size) {
  loader.Vector(out, name + ".weight", size, /*added=*/1.0F);
}

/// The experts of a layer are the matrices of three tensors [experts, out, in]; or, in newer files,
/// tensors "experts.E." or "E." of their own.
WeightLoader::Experts StepExperts(const WeightSource& source, const MoeSpec& moe,
                                  const std::string& prefix) {
  const auto has = [&](const std::string& expert) {
    return source.Has(MlpTensors::At(prefix + expert).gate);
  };
  WeightLoader::Experts experts;
  if (has("") || (!has("experts.0.") && !has("0."))) {
    experts.routed = {MlpTensors::At(prefix)};
    experts.stacked = moe.router.experts;
    return experts;
  }
  const std::string each = has("experts.0.") ? prefix + "experts." : prefix;
  for (int64_t e = 0; e < moe.router.experts; ++e) {
    experts.routed.push_back(MlpTensors::At(fmt::format("{}{}.", each, e)));
  }
  return experts;
}

void DeclareStepMoe(WeightLoader& loader, const MoeSpec& moe, int64_t hidden, MoeWeights* w,
                    const std::string& layer_prefix) {
  const std::string prefix = layer_prefix + "moe.";
  loader.UnquantizedMatrix(&w->router, prefix + "gate.weight", moe.router.experts, hidden);
  loader.Vector(&w->router_bias, prefix + "router_bias", moe.router.experts);
  WeightLoader::Experts experts = StepExperts(loader.source(), moe, prefix);
  experts.width = moe.width;
  experts.shared = MlpTensors::At(layer_prefix + "share_expert.");
  experts.shared_width = moe.shared_width;
  experts.hidden = hidden;
  loader.MoeExperts(&w->experts, experts);
}

void DeclareStepAttention(WeightLoader& loader, const GqaSpec& a, int64_t hidden, GqaWeights* w,
                          const std::string& prefix) {
  DeclareGqaMatrices(loader, a, hidden, hidden, w, prefix);
  DeclareNorm(loader, &w->q_norm, prefix + "q_norm", a.head_dim);
  DeclareNorm(loader, &w->k_norm, prefix + "k_norm", a.head_dim);
}

void DeclareStepLayer(WeightLoader& loader, const ModelConfig& c, int64_t index,
                      const std::string& prefix, DecoderLayer* layer) {
  layer->spec = OfOneRank(c.layer(index), loader.ranks());
  layer->norm_eps = static_cast<float>(c.rms_norm_eps);
  LayerWeights* w = &layer->weights;
  DeclareNorm(loader, &w->input_norm, prefix + "input_layernorm", c.hidden_size);
  DeclareStepAttention(loader, std::get<GqaSpec>(c.layer(index).attention), c.hidden_size,
                       &w->attention.emplace<GqaWeights>(), prefix + "self_attn.");
  DeclareNorm(loader, &w->post_attention_norm, prefix + "post_attention_layernorm", c.hidden_size);
  if (const MoeSpec* moe = layer->spec.moe()) {
    DeclareStepMoe(loader, *moe, c.hidden_size, &w->mlp.emplace<MoeWeights>(), prefix);
  } else {
    MlpWeights& mlp = w->mlp.emplace<MlpWeights>();
    loader.Mlp(&mlp.gate_up, &mlp.down, MlpTensors::At(prefix + "mlp."), layer->spec.dense()->width,
               c.hidden_size);
  }
}

}  // namespace

void DeclareGqaMatrices(WeightLoader& loader, const GqaSpec& a, int64_t input, int64_t output,
                        GqaWeights* w, const std::string& prefix) {
  const WeightCut heads = {.rows = Cut::kHeads};
  loader.Matrix(&w->q, prefix + "q_proj.weight", a.heads * a.head_dim, input, heads);
  loader.Matrix(&w->k, prefix + "k_proj.weight", a.kv_heads * a.head_dim, input, heads);
  loader.Matrix(&w->v, prefix + "v_proj.weight", a.kv_heads * a.head_dim, input, heads);
  if (a.gates_heads) loader.Matrix(&w->gate, prefix + "g_proj.weight", a.heads, input, heads);
  loader.Matrix(&w->o, prefix + "o_proj.weight", output, a.heads * a.head_dim,
                {.rows = Cut::kRows, .input = Cut::kHeads});
}

void Step3p5Weights::Declare(WeightLoader& loader, const ModelConfig& c, int num_modules) {
  const auto layer_prefix = [&](int64_t index) {
    return fmt::format("{}model.layers.{}.", c.tensor_prefix, index);
  };
  const std::string embedding_name = c.tensor_prefix + "model.embed_tokens.weight";
  loader.Table(&embedding, embedding_name, c.vocab_size, c.hidden_size);
  layers.resize(c.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    DeclareStepLayer(loader, c, index, layer_prefix(index), &layers[i]);
  }
  DeclareNorm(loader, &head.norm, c.tensor_prefix + "model.norm", c.hidden_size);
  const std::string head_name = c.tensor_prefix + "lm_head.weight";
  loader.Matrix(&head.head, c.tie_word_embeddings ? embedding_name : head_name, c.vocab_size,
                c.hidden_size, {.rows = Cut::kRows});
  if (c.tie_word_embeddings) {
    loader.CopyIfThere(head_name, embedding_name, c.vocab_size, c.hidden_size, loader.kTied);
  }
  mtp.resize(static_cast<size_t>(num_modules));
  for (int m = 0; m < num_modules; ++m) {
    const int64_t index = c.num_hidden_layers() + m;
    const std::string prefix = layer_prefix(index);
    Step3p5ModuleWeights& module = mtp[static_cast<size_t>(m)];
    DeclareNorm(loader, &module.embedding_norm, prefix + "enorm", c.hidden_size);
    DeclareNorm(loader, &module.hidden_norm, prefix + "hnorm", c.hidden_size);
    loader.Matrix(&module.projection, prefix + "eh_proj.weight", c.hidden_size, 2 * c.hidden_size,
                  {.rows = Cut::kRows});
    DeclareStepLayer(loader, c, index, prefix, &module.layer);
    loader.CopyIfThere(prefix + "embed_tokens.weight", embedding_name, c.vocab_size, c.hidden_size,
                       loader.kShared);
    const std::string shared_head = prefix + "transformer.shared_head.";
    DeclareNorm(loader, &module.head.norm, shared_head + "norm", c.hidden_size);
    loader.Matrix(&module.head.head, shared_head + "output.weight", c.vocab_size, c.hidden_size,
                  {.rows = Cut::kRows});
  }
}

}  // namespace outrider
