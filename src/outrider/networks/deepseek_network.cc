#include "outrider/networks/deepseek_network.h"

#include <array>
#include <utility>

namespace outrider {

DeepSeekNetwork::DeepSeekNetwork(ModelConfig config, DeepSeekWeights weights,
                                 const NetworkOptions& options)
    : Network(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  for (DecoderLayer& layer : weights_.layers) layer.rotary_kind = rotary_.Add(layer.spec.rotary);
  for (MtpWeights& w : weights_.mtp) w.layer.rotary_kind = rotary_.Add(w.layer.spec.rotary);
}

void DeepSeekNetwork::RunTarget(const BatchLayout& layout, KvCache& cache, Tensor hidden,
                                std::span<const LayerTap> taps) {
  const Context context = MakeContext();
  const StepRows rows = RowsOf(layout);
  const LayerStep step = {layout, Plan(layout), rotary_.Rows(context, rows)};
  const Tensor x = context.Rows(layout.num_rows(), config().hidden_size);
  context.ops.Embed(context, weights_.embedding, rows, false, x);
  for (int32_t i = 0; i < static_cast<int32_t>(weights_.layers.size()); ++i) {
    DecoderLayerForward(context, weights_.layers[static_cast<size_t>(i)], step, cache.layer(i), x);
    taps = FillTaps(context, taps, i, x);
  }
  context.ops.Norm(context, x, weights_.final_norm, static_cast<float>(config().rms_norm_eps),
                   hidden.Rows(0, layout.num_rows()));
}

void DeepSeekNetwork::RunMtp(const MtpPass& pass, KvCache& cache) {
  const Context context = MakeContext();
  const Ops& ops = context.ops;
  const MtpWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config().hidden_size;
  const auto eps = static_cast<float>(config().rms_norm_eps);
  const LayerCache layer_cache =
      cache.layer(static_cast<int32_t>(config().num_hidden_layers()) + pass.m);

  const Tensor pair = context.Rows(rows, 2 * width);
  const Tensor embedding = pair.Columns(0, width);
  const bool zero_first = config().mtp_zero_first_embedding;
  ops.Embed(context, weights_.embedding, RowsOf(pass.entries), zero_first,
            embedding.Rows(0, num_entries));
  ops.Embed(context, weights_.embedding, RowsOf(pass.outputs), zero_first,
            embedding.Rows(num_entries, num_outputs));
  ops.Norm(context, embedding, w.embedding_norm, eps, embedding);
  ops.Norm(context, pass.previous.Rows(0, rows), w.hidden_norm, eps, pair.Columns(width, width));
  const Tensor x = context.Rows(rows, width);
  ops.Multiply(context, std::array{Product{.x = pair, .w = &w.projection, .y = x}});
  if (num_entries > 0) {
    const LayerStep step = {pass.entries, plan(), rotary_.Rows(context, RowsOf(pass.entries))};
    WriteLayerEntries(context, w.layer, step, layer_cache, x.Rows(0, num_entries));
  }
  if (num_outputs == 0) return;
  const Tensor out = x.Rows(num_entries, num_outputs);
  const LayerStep step = {pass.outputs, Plan(pass.outputs),
                          rotary_.Rows(context, RowsOf(pass.outputs))};
  DecoderLayerForward(context, w.layer, step, layer_cache, out);
  const Tensor hidden = pass.hidden.Rows(0, num_outputs);
  ops.Norm(context, out, w.output_norm, eps, hidden);
}

HeadRows DeepSeekNetwork::RunBeforeHead(const Context& /*context*/, int32_t /*module*/,
                                        Tensor hidden, std::span<const int32_t> rows) {
  return {weights_.head, hidden, rows};
}

}  // namespace outrider
