#include "outrider/networks/step3p5_network.h"

#include <array>
#include <utility>

namespace outrider {

Step3p5Network::Step3p5Network(ModelConfig config, Step3p5Weights weights,
                               const NetworkOptions& options)
    : Network(std::move(config), options, static_cast<int32_t>(weights.mtp.size())),
      weights_(std::move(weights)) {
  for (DecoderLayer& layer : weights_.layers) layer.rotary_kind = rotary_.Add(layer.spec.rotary);
  for (Step3p5ModuleWeights& w : weights_.mtp) {
    w.layer.rotary_kind = rotary_.Add(w.layer.spec.rotary);
  }
}

void Step3p5Network::RunTarget(const BatchLayout& layout, KvCache& cache, Tensor hidden,
                               std::span<const LayerTap> taps) {
  const Context context = MakeContext();
  const StepRows rows = RowsOf(layout);
  const LayerStep step = {layout, Plan(layout), rotary_.Rows(context, rows)};
  const Tensor x = hidden.Rows(0, layout.num_rows());
  context.ops.Embed(context, weights_.embedding, rows, false, x);
  for (int32_t i = 0; i < static_cast<int32_t>(weights_.layers.size()); ++i) {
    DecoderLayerForward(context, weights_.layers[static_cast<size_t>(i)], step, cache.layer(i), x);
    taps = FillTaps(context, taps, i, x);
  }
}

void Step3p5Network::RunMtp(const MtpPass& pass, KvCache& cache) {
  const Context context = MakeContext();
  const Ops& ops = context.ops;
  const Step3p5ModuleWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;
  const int64_t width = config().hidden_size;
  const auto eps = static_cast<float>(config().rms_norm_eps);
  const LayerCache layer_cache =
      cache.layer(static_cast<int32_t>(config().num_hidden_layers()) + pass.m);

  const Tensor pair = context.Rows(rows, 2 * width);
  const Tensor embedding = pair.Columns(0, width);
  ops.Embed(context, weights_.embedding, RowsOf(pass.entries), false,
            embedding.Rows(0, num_entries));
  ops.Embed(context, weights_.embedding, RowsOf(pass.outputs), false,
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
  ops.Copy(context, out, pass.hidden.Rows(0, num_outputs));
}

HeadRows Step3p5Network::RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                                       std::span<const int32_t> rows) {
  const NormedHead& head =
      module == kTarget ? weights_.head : weights_.mtp[static_cast<size_t>(module)].head;
  const Tensor x = context.Rows(static_cast<int64_t>(rows.size()), hidden.cols);
  head_rows_.clear();
  copies_.clear();
  for (const int32_t row : rows) {
    const auto next = static_cast<int32_t>(head_rows_.size());
    copies_.Add(row, next);
    head_rows_.push_back(next);
  }
  context.ops.CopyRows(context, hidden, x, copies_);
  context.ops.Norm(context, x, head.norm, static_cast<float>(config().rms_norm_eps), x);
  return {head.head, x, head_rows_};
}

}  // namespace outrider
