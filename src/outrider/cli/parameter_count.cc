#include "outrider/cli/parameter_count.h"

#include <fmt/format.h>

namespace outrider::cli {

namespace {

int64_t AttentionParameters(const MlaSpec& a, int64_t hidden) {
  const int64_t query_width = a.heads * a.query_width();
  const int64_t queries = a.q_lora > 0
                              ? a.q_lora * (hidden + 1 + query_width)  // q_a, its norm, q_b
                              : hidden * query_width;
  const int64_t kv_a = hidden * (a.latent + a.rope) + a.latent;
  const int64_t kv_b = a.latent * a.heads * (a.nope + a.value);
  const int64_t gates = a.gates_heads ? a.heads * hidden : 0;
  const int64_t output = a.heads * a.value * hidden + gates;
  const int64_t indexer = a.indexer ? a.indexer->heads * (a.indexer->dim * a.q_lora + hidden) +
                                          a.indexer->dim * (hidden + 2)
                                    : 0;
  return queries + kv_a + kv_b + output + indexer;
}

int64_t AttentionParameters(const GqaSpec& a, int64_t hidden) {
  const int64_t projections = 2 * (a.heads + a.kv_heads) * a.head_dim * hidden;
  return projections + (a.gates_heads ? a.heads * hidden : 0) +
         (a.norms_heads ? 2 * a.head_dim : 0);
}

/// What pools entries of `width` numbers from tokens.
int64_t CompressorParameters(const CompressedSpec& a, int64_t width, int64_t hidden) {
  const int64_t channels = a.overlaps ? 2 * width : width;
  return 2 * channels * hidden + a.ratio * channels + width;
}

int64_t AttentionParameters(const CompressedSpec& a, int64_t hidden) {
  const int64_t values = a.heads * a.head_dim;
  const int64_t queries = a.q_lora * (hidden + 1 + values);
  const int64_t keys = hidden * a.head_dim + a.head_dim;
  const int64_t output = (values + a.output_groups * hidden) * a.output_rank;
  int64_t compression = 0;
  if (a.ratio > 0) compression += CompressorParameters(a, a.head_dim, hidden);
  if (a.index_heads > 0) {
    compression += CompressorParameters(a, a.index_dim, hidden) +
                   a.index_heads * (a.index_dim * a.q_lora + hidden);
  }
  return queries + keys + a.heads + output + compression;
}

int64_t AttentionParameters(const KdaSpec& a, int64_t hidden) {
  const int64_t width = a.width();
  const auto projection = [&](int64_t rank) {
    return rank > 0 ? rank * (hidden + width) : hidden * width;
  };
  const int64_t convolutions = 3 * a.conv * width;
  return 4 * hidden * width + projection(a.decay_rank) + projection(a.gate_rank) +
         hidden * a.heads + convolutions + a.heads + width + a.head_dim;
}

/// Gate, up and down projections of one MLP.
int64_t MlpParameters(int64_t width, int64_t hidden) { return 3 * hidden * width; }

struct LayerCount {
  int64_t all = 0;
  int64_t active = 0;  // for one token
};

LayerCount CountLayer(const LayerSpec& layer, int64_t hidden) {
  const int64_t attention = std::visit(
      [hidden](const auto& spec) { return AttentionParameters(spec, hidden); }, layer.attention);
  const int64_t streams = layer.residual.streams;
  const int64_t sums = (2 + streams) * streams;  // that a hyper-connection makes of its streams
  const int64_t mixing = streams > 1 ? 2 * (sums * (streams * hidden + 1) + 3) : 0;
  const int64_t common = attention + mixing + 2 * hidden;  // two norms
  const MoeSpec* moe = layer.moe();
  if (moe == nullptr) {
    const int64_t count = common + MlpParameters(layer.dense()->width, hidden);
    return {count, count};
  }
  const RouterSpec& router = moe->router;
  const int64_t bias = router.method == RouterMethod::kNoAuxTc ? router.experts : 0;  // no table
  const int64_t always =
      common + router.experts * hidden + bias + MlpParameters(moe->shared_width, hidden);
  const int64_t expert = MlpParameters(moe->width, hidden);
  return {always + router.experts * expert, always + router.top_k * expert};
}

}  // namespace

ParameterCount CountParameters(const ModelConfig& config) {
  ParameterCount count;
  const int64_t table = config.vocab_size * config.hidden_size;
  const int64_t streams = config.layers.front().residual.streams;
  const int64_t contraction = streams > 1 ? streams * (streams * config.hidden_size + 1) + 1 : 0;
  const int64_t ends =
      (config.tie_word_embeddings ? table : 2 * table) + config.hidden_size + contraction;
  count.target = ends;
  count.target_active = ends;
  for (const LayerSpec& layer : config.layers) {
    const LayerCount of_layer = CountLayer(layer, config.hidden_size);
    count.target += of_layer.all;
    count.target_active += of_layer.active;
  }
  if (config.dspark) {
    const DSparkSpec& dspark = *config.dspark;
    const auto taps = static_cast<int64_t>(dspark.taps.size());
    // main_proj and main_norm; norm; markov_w1 and markov_w2; the confidence head.
    count.mtp = dspark.stages * CountLayer(config.mtp_layer, config.hidden_size).all +
                config.hidden_size * (taps * config.hidden_size + 2) + contraction +
                2 * config.vocab_size * dspark.markov_rank + config.hidden_size +
                dspark.markov_rank;
    return count;
  }
  if (config.num_nextn_predict_layers == 0) return count;
  // enorm, hnorm and shared_head.norm; eh_proj, or e_proj and h_proj.
  count.mtp = config.num_nextn_predict_layers *
              (CountLayer(config.mtp_layer, config.hidden_size).all + 3 * config.hidden_size +
               2 * config.hidden_size * config.hidden_size + contraction +
               (config.family == ModelFamily::kStep3p5 ? table : 0));
  return count;
}

std::string ParameterCountText(int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.1f} B", number / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", number / 1e6);
  if (count >= 1'000) return fmt::format("{:.1f} K", number / 1e3);
  return fmt::to_string(count);
}

}  // namespace outrider::cli
