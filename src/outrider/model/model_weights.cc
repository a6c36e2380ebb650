#include "outrider/model/model_weights.h"

#include <string>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// One MLP of a layer; num_mlps: of that shape in the layer.
void DeclareMlp(WeightLoader& loader, MlpWeights* mlp, const std::string& prefix, int64_t width,
                int64_t hidden, int64_t num_mlps = 1) {
  const int64_t used_together = num_mlps * 3 * width * hidden;
  loader.Stacked(&mlp->gate_up, {prefix + "gate_proj.weight", prefix + "up_proj.weight"}, width,
                 hidden, used_together);
  loader.Matrix(&mlp->down, prefix + "down_proj.weight", hidden, width, used_together);
}

void DeclareAttention(WeightLoader& loader, const ModelConfig& c, MlaWeights* w,
                      const std::string& prefix) {
  const int64_t query = c.num_attention_heads * c.qk_head_dim();
  if (c.q_lora_rank > 0) {
    loader.Matrix(&w->q_a, prefix + "q_a_proj.weight", c.q_lora_rank, c.hidden_size);
    loader.Vector(&w->q_a_norm, prefix + "q_a_layernorm.weight", c.q_lora_rank);
    loader.Matrix(&w->q_b, prefix + "q_b_proj.weight", query, c.q_lora_rank);
  } else {
    loader.Matrix(&w->q_b, prefix + "q_proj.weight", query, c.hidden_size);
  }
  loader.Matrix(&w->kv_a, prefix + "kv_a_proj_with_mqa.weight", c.kv_lora_rank + c.qk_rope_head_dim,
                c.hidden_size);
  loader.Vector(&w->kv_a_norm, prefix + "kv_a_layernorm.weight", c.kv_lora_rank);
  loader.SplitKvUp({&w->key_up, &w->key_up_t, &w->value_up, c.num_attention_heads,
                    c.qk_nope_head_dim, c.v_head_dim, c.kv_lora_rank},
                   prefix + "kv_b_proj.weight");
  loader.Matrix(&w->o, prefix + "o_proj.weight", c.hidden_size,
                c.num_attention_heads * c.v_head_dim);
}

void DeclareLayer(WeightLoader& loader, const ModelConfig& c, int64_t index, LayerWeights* layer) {
  const std::string prefix = fmt::format("{}model.layers.{}.", c.tensor_prefix, index);
  loader.Vector(&layer->input_norm, prefix + "input_layernorm.weight", c.hidden_size);
  DeclareAttention(loader, c, &layer->attention, prefix + "self_attn.");
  loader.Vector(&layer->post_attention_norm, prefix + "post_attention_layernorm.weight",
                c.hidden_size);
  layer->is_moe = c.IsMoeLayer(index);
  if (!layer->is_moe) {
    DeclareMlp(loader, &layer->mlp, prefix + "mlp.", c.intermediate_size, c.hidden_size);
    return;
  }
  loader.UnquantizedMatrix(&layer->router, prefix + "mlp.gate.weight", c.n_routed_experts,
                           c.hidden_size);
  if (c.router_method == RouterMethod::kNoAuxTc) {
    loader.Vector(&layer->router_bias, prefix + "mlp.gate.e_score_correction_bias",
                  c.n_routed_experts);
  }
  if (c.n_shared_experts > 0) {
    DeclareMlp(loader, &layer->mlp, prefix + "mlp.shared_experts.",
               c.n_shared_experts * c.moe_intermediate_size, c.hidden_size);
  }
  layer->experts.resize(static_cast<size_t>(c.n_routed_experts));
  for (int64_t e = 0; e < c.n_routed_experts; ++e) {
    DeclareMlp(loader, &layer->experts[static_cast<size_t>(e)],
               fmt::format("{}mlp.experts.{}.", prefix, e), c.moe_intermediate_size, c.hidden_size,
               c.n_routed_experts);
  }
}

void DeclareTarget(WeightLoader& loader, const ModelConfig& c, ModelWeights* w) {
  const std::string embedding = c.tensor_prefix + "model.embed_tokens.weight";
  loader.Table(&w->embedding, embedding, c.vocab_size, c.hidden_size);
  w->layers.resize(static_cast<size_t>(c.num_hidden_layers));
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    DeclareLayer(loader, c, i, &w->layers[static_cast<size_t>(i)]);
  }
  loader.Vector(&w->final_norm, c.tensor_prefix + "model.norm.weight", c.hidden_size);
  const std::string head = c.tensor_prefix + "lm_head.weight";
  loader.Matrix(&w->head, c.tie_word_embeddings ? embedding : head, c.vocab_size, c.hidden_size);
  if (c.tie_word_embeddings && loader.source().Has(head)) {
    loader.Copy(head, embedding, c.vocab_size, c.hidden_size);
  }
}

void DeclareMtp(WeightLoader& loader, const ModelConfig& c, int num_modules, ModelWeights* w) {
  w->mtp.resize(static_cast<size_t>(num_modules));
  for (int m = 0; m < num_modules; ++m) {
    const int64_t index = c.num_hidden_layers + m;
    const std::string prefix = fmt::format("{}model.layers.{}.", c.tensor_prefix, index);
    MtpWeights& mtp = w->mtp[static_cast<size_t>(m)];
    loader.Vector(&mtp.embedding_norm, prefix + "enorm.weight", c.hidden_size);
    loader.Vector(&mtp.hidden_norm, prefix + "hnorm.weight", c.hidden_size);
    loader.Matrix(&mtp.projection, prefix + "eh_proj.weight", c.hidden_size, 2 * c.hidden_size);
    DeclareLayer(loader, c, index, &mtp.layer);
    loader.Vector(&mtp.output_norm, prefix + "shared_head.norm.weight", c.hidden_size);
  }
}

/// Declares everything and checks it against what the loader reads from.
void DeclareAll(WeightLoader& loader, const ModelConfig& config, int num_mtp_modules,
                ModelWeights* weights) {
  if (config.attention_bias) {
    throw InvalidArgument(
        "attention_bias true is not supported: no published model of the family "
        "{} has it",
        ModelFamilyName(config.family));
  }
  DeclareTarget(loader, config, weights);
  DeclareMtp(loader, config, num_mtp_modules, weights);
  loader.Check(config);
}

}  // namespace

ModelWeights MeasureModelWeights(const ModelConfig& config, int num_mtp_modules,
                                 const WeightSource& source, WeightForm form) {
  ModelWeights weights;
  WeightLoader all(source, form);
  DeclareAll(all, config, num_mtp_modules, &weights);
  ModelWeights target_only;
  WeightLoader target(source, form);
  DeclareTarget(target, config, &target_only);
  ModelWeights sizes;
  sizes.target_sizes = target.PackedSizes();
  sizes.mtp_sizes = all.PackedSizes();
  for (const auto& [dtype, bytes] : sizes.target_sizes) sizes.mtp_sizes[dtype] -= bytes;
  std::erase_if(sizes.mtp_sizes, [](const auto& entry) { return entry.second == 0; });
  return sizes;
}

ModelWeights LoadModelWeights(const ModelConfig& config, int num_mtp_modules,
                              const WeightSource& source, WeightForm form, ThreadPool& pool,
                              const WeightLoader::Progress& progress) {
  ModelWeights weights = MeasureModelWeights(config, num_mtp_modules, source, form);
  WeightLoader loader(source, form);
  DeclareAll(loader, config, num_mtp_modules, &weights);
  weights.memory = loader.Load(pool, progress);
  return weights;
}

}  // namespace outrider
