#include "outrider/networks/deepseek_v4_weights.h"

#include <string>

namespace outrider {

namespace {

/// `sums` of the streams, with as many scales.
void DeclareStreams(WeightLoader& loader, HyperWeights* w, const std::string& name, int64_t sums,
                    int64_t scales, int64_t width) {
  loader.StreamMatrix(&w->sums, name + "_fn", sums, width);
  loader.Vector(&w->base, name + "_base", sums);
  loader.Vector(&w->scale, name + "_scale", scales);
}

/// Adds the matrices to `of_x`.
void DeclareCompressor(WeightLoader& loader, const CompressedSpec& a, int64_t width,
                       CompressorWeights* w, const std::string& prefix,
                       std::vector<WeightLoader::NamedMatrix>& of_x) {
  const int64_t channels = a.overlaps ? 2 * width : width;
  of_x.push_back({.out = &w->values, .name = prefix + "wkv.weight", .rows = channels});
  of_x.push_back({.out = &w->gates, .name = prefix + "wgate.weight", .rows = channels});
  loader.Values(&w->bias, prefix + "ape", a.ratio, channels);
  loader.Vector(&w->norm, prefix + "norm.weight", width);
}

void DeclareV4Attention(WeightLoader& loader, const CompressedSpec& a, int64_t hidden,
                        CompressedWeights* w, const std::string& prefix) {
  loader.SideBySide({{.out = &w->q_a, .name = prefix + "wq_a.weight", .rows = a.q_lora},
                     {.out = &w->kv, .name = prefix + "wkv.weight", .rows = a.head_dim}},
                    hidden);
  loader.Vector(&w->q_norm, prefix + "q_norm.weight", a.q_lora);
  const std::string indexer = prefix + "indexer.";
  const WeightLoader::NamedMatrix q_b = {.out = &w->q_b,
                                         .name = prefix + "wq_b.weight",
                                         .rows = a.heads * a.head_dim,
                                         .cut = {.rows = Cut::kHeads}};
  if (a.index_heads > 0) {
    loader.SideBySide({q_b,
                       {.out = &w->indexer.queries,
                        .name = indexer + "wq_b.weight",
                        .rows = a.index_heads * a.index_dim}},
                      a.q_lora);
  } else {
    loader.Matrix(q_b.out, q_b.name, q_b.rows, a.q_lora, q_b.cut);
  }
  loader.Vector(&w->kv_norm, prefix + "kv_norm.weight", a.head_dim);
  loader.HeadVector(&w->sinks, prefix + "attn_sink", a.heads);
  // A group has the heads of one rank.
  loader.Matrix(&w->o_a, prefix + "wo_a.weight", a.output_groups * a.output_rank,
                a.heads / a.output_groups * a.head_dim, {.rows = Cut::kHeads});
  loader.Matrix(&w->o_b, prefix + "wo_b.weight", hidden, a.output_groups * a.output_rank,
                {.rows = Cut::kRows, .input = Cut::kHeads});
  if (a.ratio == 0) return;
  // All that reads a layer's input in full precision.
  std::vector<WeightLoader::NamedMatrix> of_x;
  DeclareCompressor(loader, a, a.head_dim, &w->compressor, prefix + "compressor.", of_x);
  if (a.index_heads > 0) {
    DeclareCompressor(loader, a, a.index_dim, &w->indexer.compressor, indexer + "compressor.",
                      of_x);
    of_x.push_back({.out = &w->indexer.weights,
                    .name = indexer + "weights_proj.weight",
                    .rows = a.index_heads});
  }
  loader.ExactSideBySide(of_x, hidden);
}

void DeclareV4Experts(WeightLoader& loader, const MoeSpec& moe, const ModelConfig& c, MoeWeights* w,
                      const std::string& prefix) {
  const RouterSpec& router = moe.router;
  loader.ExactMatrix(&w->router, prefix + "gate.weight", router.experts, c.hidden_size);
  if (router.method == RouterMethod::kTokenTable) {
    loader.Integers(&w->token_experts, prefix + "gate.tid2eid", c.vocab_size, router.top_k,
                    router.experts);
  } else {
    loader.Vector(&w->router_bias, prefix + "gate.bias", router.experts);
  }
  WeightLoader::Experts experts = {.width = moe.width,
                                   .shared = MlpTensors::NumberedAt(prefix + "shared_experts."),
                                   .shared_width = moe.shared_width,
                                   .hidden = c.hidden_size};
  for (int64_t e = 0; e < router.experts; ++e) {
    experts.routed.push_back(MlpTensors::NumberedAt(fmt::format("{}experts.{}.", prefix, e)));
  }
  loader.MoeExperts(&w->experts, experts);
}

void DeclareV4Layer(WeightLoader& loader, const LayerSpec& spec, const ModelConfig& c,
                    DeepSeekV4LayerWeights* w, const std::string& prefix) {
  const int64_t streams = spec.residual.streams;
  const int64_t sums = (2 + streams) * streams;
  const int64_t width = streams * c.hidden_size;
  DeclareStreams(loader, &w->attention_streams, prefix + "hc_attn", sums, 3, width);
  loader.Vector(&w->attention_norm, prefix + "attn_norm.weight", c.hidden_size);
  DeclareV4Attention(loader, std::get<CompressedSpec>(spec.attention), c.hidden_size, &w->attention,
                     prefix + "attn.");
  DeclareStreams(loader, &w->mlp_streams, prefix + "hc_ffn", sums, 3, width);
  loader.Vector(&w->mlp_norm, prefix + "ffn_norm.weight", c.hidden_size);
  DeclareV4Experts(loader, *spec.moe(), c, &w->mlp, prefix + "ffn.");
}

void DeclareV4Head(WeightLoader& loader, const ModelConfig& c, DeepSeekV4HeadWeights* w,
                   const std::string& prefix) {
  const int64_t streams = c.layers.front().residual.streams;
  DeclareStreams(loader, &w->streams, prefix + "hc_head", streams, 1, streams * c.hidden_size);
  loader.Vector(&w->norm, prefix + "norm.weight", c.hidden_size);
}

void DeclareV4Module(WeightLoader& loader, const ModelConfig& c, DeepSeekV4MtpWeights* w,
                     const std::string& prefix) {
  loader.Vector(&w->embedding_norm, prefix + "enorm.weight", c.hidden_size);
  loader.Vector(&w->hidden_norm, prefix + "hnorm.weight", c.hidden_size);
  const WeightCut rows = {.rows = Cut::kRows};
  loader.Matrix(&w->embedding_projection, prefix + "e_proj.weight", c.hidden_size, c.hidden_size,
                rows);
  loader.Matrix(&w->hidden_projection, prefix + "h_proj.weight", c.hidden_size, c.hidden_size,
                rows);
  DeclareV4Layer(loader, c.mtp_layer, c, &w->layer, prefix);
  DeclareV4Head(loader, c, &w->before_head, prefix);
}

void DeclareDSpark(WeightLoader& loader, const ModelConfig& c, DSparkWeights* w) {
  const DSparkSpec& spec = *c.dspark;
  const std::string prefix = c.tensor_prefix + "mtp.";
  const auto taps = static_cast<int64_t>(spec.taps.size());
  w->stages.resize(static_cast<size_t>(spec.stages));
  for (size_t s = 0; s < w->stages.size(); ++s) {
    DeclareV4Layer(loader, c.mtp_layer, c, &w->stages[s], fmt::format("{}{}.", prefix, s));
  }
  loader.Matrix(&w->projection, prefix + "0.main_proj.weight", c.hidden_size, taps * c.hidden_size,
                {.rows = Cut::kRows});
  loader.Vector(&w->norm, prefix + "0.main_norm.weight", c.hidden_size);
  const std::string last = fmt::format("{}{}.", prefix, spec.stages - 1);
  DeclareV4Head(loader, c, &w->before_head, last);
  const std::string markov = last + "markov_head.markov_w";
  loader.Table(&w->markov, markov + "1.weight", c.vocab_size, spec.markov_rank);
  loader.Matrix(&w->bias, markov + "2.weight", c.vocab_size, spec.markov_rank,
                {.rows = Cut::kRows});
  loader.ExactMatrix(&w->confidence, last + "confidence_head.proj.weight", 1,
                     c.hidden_size + spec.markov_rank);
}

}  // namespace

void DeepSeekV4Weights::Declare(WeightLoader& loader, const ModelConfig& c, int num_modules) {
  const std::string& prefix = c.tensor_prefix;
  const std::string embedding_name = prefix + "embed.weight";
  const std::string head_name = prefix + "head.weight";
  const std::string& head_in_use = c.tie_word_embeddings ? embedding_name : head_name;
  loader.Table(&embedding, embedding_name, c.vocab_size, c.hidden_size);
  layers.resize(c.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    DeclareV4Layer(loader, c.layers[i], c, &layers[i], fmt::format("{}layers.{}.", prefix, i));
  }
  DeclareV4Head(loader, c, &before_head, prefix);
  loader.Matrix(&head, head_in_use, c.vocab_size, c.hidden_size, {.rows = Cut::kRows});
  if (c.tie_word_embeddings) {
    loader.CopyIfThere(head_name, embedding_name, c.vocab_size, c.hidden_size, loader.kTied);
  }
  const int64_t modules = c.dspark && num_modules > 0 ? c.dspark->stages : num_modules;
  for (int64_t m = 0; m < modules; ++m) {
    const std::string module = fmt::format("{}mtp.{}.", prefix, m);
    for (const std::string_view name : {"embed.weight", "emb.tok_emb.weight"}) {
      loader.CopyIfThere(module + std::string(name), embedding_name, c.vocab_size, c.hidden_size,
                         loader.kShared);
    }
    loader.CopyIfThere(module + "head.weight", head_in_use, c.vocab_size, c.hidden_size,
                       loader.kShared);
  }
  if (c.dspark) {
    if (num_modules > 0) DeclareDSpark(loader, c, &dspark);
    return;
  }
  mtp.resize(static_cast<size_t>(num_modules));
  for (size_t m = 0; m < mtp.size(); ++m) {
    DeclareV4Module(loader, c, &mtp[m], fmt::format("{}mtp.{}.", prefix, m));
  }
}

}  // namespace outrider
