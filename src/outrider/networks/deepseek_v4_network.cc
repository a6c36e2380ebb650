#include "outrider/networks/deepseek_v4_network.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

const CompressedSpec& AttentionOf(const LayerSpec& layer) {
  return std::get<CompressedSpec>(layer.attention);
}

HyperShape ShapeOfStreams(const ModelConfig& config) {
  const HyperConnectionSpec& residual = config.layers.front().residual;
  return {.streams = static_cast<int32_t>(residual.streams),
          .iterations = static_cast<int32_t>(residual.iterations),
          .eps = static_cast<float>(residual.eps),
          .norm_eps = static_cast<float>(config.rms_norm_eps)};
}

}  // namespace

DeepSeekV4Network::DeepSeekV4Network(ModelConfig config, DeepSeekV4Weights weights,
                                     const NetworkOptions& options)
    : Network(std::move(config), options, /*num_modules=*/0),
      weights_(std::move(weights)),
      streams_(ShapeOfStreams(this->config())) {
  OUTRIDER_CHECK(options.attention.cache_form() == KvCacheForm::kHeads);
  int64_t widest = 0;
  for (const LayerSpec& layer : this->config().layers) {
    const auto index = static_cast<int64_t>(first_cache_layers_.size());
    first_cache_layers_.push_back(FirstCacheLayer(this->config(), index));
    rotary_numbers_.push_back(
        {rotary_.Add(layer.rotary), rotary_.Add(layer.rotary, /*inverse=*/true)});
    widest = std::max(widest, AttentionOf(layer).head_dim);
  }
  first_cache_layers_.push_back(
      FirstCacheLayer(this->config(), this->config().num_hidden_layers()));
  ones_.assign(static_cast<size_t>(widest), 1.0F);
}

void DeepSeekV4Network::RunTarget(const StepInputs& inputs, KvCache& cache, Tensor hidden,
                                  std::span<const LayerTap> taps) {
  OUTRIDER_CHECK(taps.empty(), "its layers have no single residual stream to tap");
  const Context context = MakeContext();
  const Step step = {inputs, cache, rotary_.Rows(context, inputs)};
  const int64_t width = config().hidden_size;
  const Tensor streams = context.Rows(inputs.num_rows(), streams_.streams * width);
  context.ops.Embed(context, weights_.embedding, inputs, false, streams.Columns(0, width));
  for (int32_t s = 1; s < streams_.streams; ++s) {
    context.ops.Copy(context, streams.Columns(0, width), streams.Columns(s * width, width));
  }
  for (size_t i = 0; i < weights_.layers.size(); ++i) RunLayer(context, i, step, streams);
  const Tensor out = hidden.Rows(0, inputs.num_rows());
  ContractStreams(context, streams_, weights_.head_streams, streams, out);
  context.ops.Norm(context, out, weights_.norm, streams_.norm_eps, out);
}

void DeepSeekV4Network::RunLayer(const Context& context, size_t index, const Step& step,
                                 Tensor streams) const {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const DeepSeekV4LayerWeights& w = weights_.layers[index];
  const Tensor x = context.Rows(streams.rows, config().hidden_size);
  const Tensor y = context.Rows(streams.rows, config().hidden_size);
  {
    const Scratch::Frame of_attention(context.arena);
    const Tensor mixing = MixStreams(context, streams_, w.attention_streams, streams, x);
    ops.Norm(context, x, w.attention_norm, streams_.norm_eps, x);
    RunAttention(context, index, step, x, y);
    ops.HyperAdd(context, streams_, mixing, y, streams);
  }
  const Tensor mixing = MixStreams(context, streams_, w.mlp_streams, streams, x);
  ops.Norm(context, x, w.mlp_norm, streams_.norm_eps, x);
  ops.SetZero(context, y);
  MixtureOfExperts(context, *config().layers[index].moe(), w.mlp, step.inputs, x, y);
  ops.HyperAdd(context, streams_, mixing, y, streams);
}

void DeepSeekV4Network::RunAttention(const Context& context, size_t index, const Step& step,
                                     Tensor x, Tensor y) const {
  const auto [forward, back] = rotary_numbers_[index];
  std::vector<LayerCache> caches;
  for (int32_t c = first_cache_layers_[index]; c < first_cache_layers_[index + 1]; ++c) {
    caches.push_back(step.cache.layer(c));
  }
  CompressedForward(context, AttentionOf(config().layers[index]), weights_.layers[index].attention,
                    {.inputs = step.inputs,
                     .rotary = step.rotary[static_cast<size_t>(forward)],
                     .back = step.rotary[static_cast<size_t>(back)],
                     .frequencies = rotary_.frequencies(forward),
                     .magnitude = static_cast<float>(config().layers[index].rotary.Magnitude()),
                     .ones = ones_.data(),
                     .norm_eps = streams_.norm_eps,
                     .caches = caches},
                    x, y);
}

void DeepSeekV4Network::RunMtp(const ModulePass& /*pass*/, KvCache& /*cache*/) {
  OUTRIDER_CHECK(false, "it has no modules");
}

HeadRows DeepSeekV4Network::RunBeforeHead(const Context& /*context*/, int32_t /*module*/,
                                          Tensor hidden, std::span<const int32_t> rows) {
  return {weights_.head, hidden, rows};
}

}  // namespace outrider
