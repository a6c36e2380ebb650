#include "outrider/networks/hybrid_weights.h"

#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/checkpoint/hybrid_names.h"
#include "outrider/checkpoint/rank_config.h"

namespace outrider {

namespace {

/// A projection that checkpoints call `letter`_proj, or in two matrices `letter`_a_proj and
/// `letter`_b_proj. The last matrix.
WeightLoader::NamedMatrix LastOf(KdaProjection* w, const std::string& letter, int64_t rank,
                                 int64_t width) {
  return {.out = &w->up,
          .name = letter + (rank == 0 ? "_proj" : "_b_proj") + ".weight",
          .rows = width,
          .cut = {.rows = Cut::kHeads}};
}
WeightLoader::NamedMatrix FirstOf(KdaProjection* w, const std::string& letter, int64_t rank) {
  return {.out = &w->down, .name = letter + "_a_proj.weight", .rows = rank};
}

/// What reads the layer's input, in the order of layers/kda_attention.cc.
void DeclareKdaProjections(WeightLoader& loader, const KdaSpec& kda, const HybridNames& names,
                           int64_t hidden, const std::string& prefix, KdaWeights* w) {
  const int64_t width = kda.width();
  const std::string decay = prefix + std::string(names.decay);
  const std::string gate = prefix + std::string(names.gate);
  const WeightCut heads = {.rows = Cut::kHeads};
  const WeightLoader::NamedMatrix write = {
      .out = &w->write, .name = prefix + "b_proj.weight", .rows = kda.heads, .cut = heads};
  const WeightLoader::NamedMatrix decay_up = LastOf(&w->decay, decay, kda.decay_rank, width);
  const WeightLoader::NamedMatrix gate_up = LastOf(&w->gate, gate, kda.gate_rank, width);
  const auto alone = [&](const WeightLoader::NamedMatrix& m, int64_t cols) {
    loader.Matrix(m.out, m.name, m.rows, cols, m.cut);
  };
  std::vector<WeightLoader::NamedMatrix> projections = {
      {.out = &w->q, .name = prefix + "q_proj.weight", .rows = width, .cut = heads},
      {.out = &w->k, .name = prefix + "k_proj.weight", .rows = width, .cut = heads},
      {.out = &w->v, .name = prefix + "v_proj.weight", .rows = width, .cut = heads}};
  if (kda.decay_rank == 0) projections.push_back(decay_up);
  if (kda.gate_rank == 0) projections.push_back(gate_up);
  projections.push_back(write);
  loader.SideBySide(projections, hidden);
  if (kda.decay_rank > 0) alone(decay_up, kda.decay_rank);
  if (kda.gate_rank > 0) alone(gate_up, kda.gate_rank);
  const WeightLoader::NamedMatrix decay_down = FirstOf(&w->decay, decay, kda.decay_rank);
  const WeightLoader::NamedMatrix gate_down = FirstOf(&w->gate, gate, kda.gate_rank);
  if (kda.decay_rank > 0 && kda.gate_rank > 0) {
    loader.SideBySide({decay_down, gate_down}, hidden);
  } else if (kda.decay_rank > 0) {
    alone(decay_down, hidden);
  } else if (kda.gate_rank > 0) {
    alone(gate_down, hidden);
  }
}

void DeclareKda(WeightLoader& loader, const KdaSpec& kda, const HybridNames& names, int64_t hidden,
                const std::string& prefix, KdaWeights* w) {
  const int64_t width = kda.width();
  DeclareKdaProjections(loader, kda, names, hidden, prefix, w);
  loader.HeadValues(&w->q_taps, prefix + "q_conv1d.weight", width, kda.conv);
  loader.HeadValues(&w->k_taps, prefix + "k_conv1d.weight", width, kda.conv);
  loader.HeadValues(&w->v_taps, prefix + "v_conv1d.weight", width, kda.conv);
  loader.HeadValues(&w->decay_log, prefix + "A_log", kda.heads, 1);
  loader.HeadVector(&w->decay_bias, prefix + "dt_bias", width);
  loader.Vector(&w->norm, prefix + "o_norm.weight", kda.head_dim);
  loader.Matrix(&w->o, prefix + "o_proj.weight", hidden, width,
                {.rows = Cut::kRows, .input = Cut::kHeads});
}

void DeclareLatent(WeightLoader& loader, const MlaSpec& mla, const HybridNames& names,
                   int64_t hidden, const std::string& prefix, MlaWeights* w) {
  DeclareMlaAttention(loader, mla, hidden, hidden, w, prefix, names.latent_output);
  if (mla.gates_heads) {
    loader.Matrix(&w->gate, prefix + "g_proj.weight", mla.heads, hidden, {.rows = Cut::kHeads});
  }
}

void DeclareHybridMoe(WeightLoader& loader, const MoeSpec& moe, const HybridNames& names,
                      int64_t hidden, const std::string& prefix, MoeWeights* w) {
  loader.UnquantizedMatrix(&w->router, prefix + "gate.weight", moe.router.experts, hidden);
  loader.Vector(&w->router_bias, prefix + std::string(names.router_bias), moe.router.experts);
  WeightLoader::Experts experts = {.width = moe.width,
                                   .shared = MlpTensors::At(prefix + "shared_experts."),
                                   .shared_width = moe.shared_width,
                                   .hidden = hidden};
  for (int64_t e = 0; e < moe.router.experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    experts.routed.push_back(names.numbers_experts ? MlpTensors::NumberedAt(expert)
                                                   : MlpTensors::At(expert));
  }
  loader.MoeExperts(&w->experts, experts);
}

std::string HybridLayerPrefix(const ModelConfig& c, int64_t index) {
  return fmt::format("{}model.layers.{}.", c.tensor_prefix, index);
}

void DeclareHybridLayer(WeightLoader& loader, const ModelConfig& c, int64_t index,
                        DecoderLayer* layer) {
  const HybridNames& names = HybridNamesOf(c.family);
  const std::string prefix = HybridLayerPrefix(c, index);
  const LayerSpec whole = c.layer(index);
  layer->spec = OfOneRank(whole, loader.ranks());
  layer->norm_eps = static_cast<float>(c.rms_norm_eps);
  LayerWeights* w = &layer->weights;
  loader.Vector(&w->input_norm, prefix + "input_layernorm.weight", c.hidden_size);
  const std::string attention = prefix + std::string(names.attention);
  if (const auto* kda = std::get_if<KdaSpec>(&whole.attention)) {
    DeclareKda(loader, *kda, names, c.hidden_size, attention, &w->attention.emplace<KdaWeights>());
  } else {
    DeclareLatent(loader, std::get<MlaSpec>(whole.attention), names, c.hidden_size, attention,
                  &w->attention.emplace<MlaWeights>());
  }
  loader.Vector(&w->post_attention_norm, prefix + "post_attention_layernorm.weight", c.hidden_size);
  if (const MoeSpec* moe = layer->spec.moe()) {
    DeclareHybridMoe(loader, *moe, names, c.hidden_size, prefix + std::string(names.experts),
                     &w->mlp.emplace<MoeWeights>());
    return;
  }
  MlpWeights& mlp = w->mlp.emplace<MlpWeights>();
  loader.Mlp(&mlp.gate_up, &mlp.down, MlpTensors::At(prefix + "mlp."), layer->spec.dense()->width,
             c.hidden_size);
}

}  // namespace

void HybridWeights::Declare(WeightLoader& loader, const ModelConfig& c, int num_modules) {
  const std::string embedding_name =
      c.tensor_prefix + std::string(HybridNamesOf(c.family).embedding);
  loader.Table(&embedding, embedding_name, c.vocab_size, c.hidden_size);
  layers.resize(c.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    DeclareHybridLayer(loader, c, static_cast<int64_t>(i), &layers[i]);
  }
  loader.Vector(&final_norm, c.tensor_prefix + "model.norm.weight", c.hidden_size);
  const std::string head_name = c.tensor_prefix + "lm_head.weight";
  loader.Matrix(&head, c.tie_word_embeddings ? embedding_name : head_name, c.vocab_size,
                c.hidden_size, {.rows = Cut::kRows});
  if (c.tie_word_embeddings) {
    loader.CopyIfThere(head_name, embedding_name, c.vocab_size, c.hidden_size, loader.kTied);
  }
  mtp.resize(static_cast<size_t>(num_modules));
  for (int m = 0; m < num_modules; ++m) {
    const int64_t index = c.num_hidden_layers() + m;
    const std::string prefix = HybridLayerPrefix(c, index);
    MtpWeights& module = mtp[static_cast<size_t>(m)];
    loader.Vector(&module.embedding_norm, prefix + "enorm.weight", c.hidden_size);
    loader.Vector(&module.hidden_norm, prefix + "hnorm.weight", c.hidden_size);
    loader.Matrix(&module.projection, prefix + "eh_proj.weight", c.hidden_size, 2 * c.hidden_size,
                  {.rows = Cut::kRows});
    DeclareHybridLayer(loader, c, index, &module.layer);
    loader.Vector(&module.output_norm, prefix + "final_layernorm.weight", c.hidden_size);
  }
}

}  // namespace outrider
