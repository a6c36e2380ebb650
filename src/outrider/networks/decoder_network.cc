#include "outrider/networks/decoder_network.h"

#include <array>
#include <utility>

namespace outrider {

DecoderNetwork::DecoderNetwork(ModelConfig config, NetworkOptions options, int32_t num_modules)
    : Network(std::move(config), std::move(options), num_modules) {
  for (int64_t i = 0; i <= this->config().num_hidden_layers() + num_modules; ++i) {
    first_caches_.push_back(FirstCacheLayer(this->config(), i));
  }
  const RowPaths paths = attention().paths();
  OUTRIDER_CHECK(paths == RowPathsOf(this->config(), paths.latent_form()));
}

LayerCaches DecoderNetwork::CachesOf(KvCache& cache, int32_t index) const {
  const int32_t first = first_caches_[static_cast<size_t>(index)];
  const int32_t count = first_caches_[static_cast<size_t>(index) + 1] - first;
  return {.entries = count > 0 ? cache.layer(first) : LayerCache{},
          .index_keys = count > 1 ? cache.layer(first + 1) : LayerCache{}};
}

void DecoderNetwork::RunLayers(const Context& context, const TokenTable& embedding,
                               std::span<const DecoderLayer> layers, const StepInputs& inputs,
                               KvCache& cache, const TargetTaps& taps, Tensor x,
                               const NormOut& norm) {
  std::span<const LayerTap> layer_taps = taps.layers;
  LayerStep step = StepOf(context, inputs, cache);
  const Tensor h = context.Activations(x.rows, x.cols);
  context.ops.Embed(context, embedding, inputs, false, x);
  context.ops.Norm(context, x, layers.front().weights.input_norm, layers.front().norm_eps, h);
  for (size_t i = 0; i < layers.size(); ++i) {
    const DecoderLayer* const next = i + 1 < layers.size() ? &layers[i + 1] : nullptr;
    const auto layer = static_cast<int32_t>(i);
    step.chosen = taps.experts.Layer(layer);
    DecoderLayerForward(
        context, layers[i], step, CachesOf(cache, layer), x, h,
        next == nullptr ? norm : NormOut{next->weights.input_norm, next->norm_eps, h});
    layer_taps = FillTaps(context, layer_taps, layer, x);
  }
}

Tensor DecoderNetwork::RunModule(const Context& context, const TokenTable& embedding_table,
                                 const MtpModule& module, const ModulePass& pass, KvCache& cache,
                                 const NormOut& norm) {
  const Ops& ops = context.ops;
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config().hidden_size;
  const auto eps = static_cast<float>(config().rms_norm_eps);
  const LayerCaches layer_cache =
      CachesOf(cache, static_cast<int32_t>(config().num_hidden_layers()) + pass.m);

  const Tensor pair = context.Activations(rows, 2 * width);
  const Tensor embedding = context.Rows(rows, width);
  const bool zero_first = config().mtp_zero_first_embedding;
  ops.Embed(context, embedding_table, pass.entries, zero_first, embedding.Rows(0, num_entries));
  ops.Embed(context, embedding_table, pass.outputs, zero_first,
            embedding.Rows(num_entries, num_outputs));
  ops.Norm(context, embedding, module.embedding_norm, eps, pair.Columns(0, width));
  ops.Norm(context, pass.previous.Rows(0, rows), module.hidden_norm, eps,
           pair.Columns(width, width));
  const Tensor x = context.Rows(rows, width);
  ops.Multiply(context, std::array{Product{.x = pair, .w = &module.projection, .y = x}});
  if (num_entries > 0) {
    const LayerStep step = StepOf(context, pass.entries, cache);
    WriteLayerEntries(context, module.layer, step, layer_cache, x.Rows(0, num_entries));
  }
  const Tensor out = x.Rows(num_entries, num_outputs);
  if (num_outputs > 0) {
    const LayerStep step = StepOf(context, pass.outputs, cache);
    const Tensor h = context.Activations(num_outputs, width);
    ops.Norm(context, out, module.layer.weights.input_norm, module.layer.norm_eps, h);
    DecoderLayerForward(context, module.layer, step, layer_cache, out, h, norm);
  }
  return out;
}

}  // namespace outrider
