#include "outrider/networks/deepseek_v4_network.h"

#include <array>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/networks/dspark_draft_model.h"
#include "outrider/ops/hyper.h"

namespace outrider {

namespace {

/// The streams of rows [rows, S * hidden] as rows of their own [rows * S, hidden].
Tensor EachStream(Tensor streams, int64_t hidden) {
  OUTRIDER_CHECK(streams.stride == streams.cols);
  return {streams.data, streams.dtype, streams.rows * streams.cols / hidden, hidden, hidden};
}

}  // namespace

std::unique_ptr<BlockDraftModel> DeepSeekV4Network::MakeBlockDraftModel() {
  if (weights_.dspark.stages.empty()) return nullptr;
  return std::make_unique<DSparkDraftModel>(*this);
}

DeepSeekV4Network::DeepSeekV4Network(ModelConfig config, DeepSeekV4Weights weights,
                                     const NetworkOptions& options)
    : Network(std::move(config), options,
              static_cast<int32_t>(weights.mtp.size() + weights.dspark.stages.size())),
      weights_(std::move(weights)),
      layers_(this->config()) {
  OUTRIDER_CHECK(options.attention.paths() == RowPaths(RowPath::kListed));
  int64_t index = 0;
  for (const DeepSeekV4LayerWeights& w : weights_.layers) layers_.Add(this->config(), index++, w);
  for (const DeepSeekV4MtpWeights& w : weights_.mtp) layers_.Add(this->config(), index++, w.layer);
}

void DeepSeekV4Network::RunTarget(const Context& context, const StepInputs& inputs, KvCache& cache,
                                  Tensor hidden, const TargetTaps& taps) {
  auto step = layers_.MakeStep(context, inputs, cache);
  std::span<const LayerTap> layer_taps = taps.layers;
  const int64_t width = layers_.hidden_size();
  const Tensor kept = hidden.Rows(0, inputs.num_rows());
  // Streams are float32 between layers, also where what outlives the step is not.
  const bool in_place = kept.dtype == DType::kF32;
  const Tensor streams = in_place ? kept : context.Rows(kept.rows, kept.cols);
  context.ops.Embed(context, weights_.embedding, inputs, false, streams.Columns(0, width));
  layers_.RepeatFirstStream(context, streams);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    step.chosen = taps.experts.Layer(static_cast<int64_t>(i));
    const auto is_tapped = [&] {
      return !layer_taps.empty() && std::cmp_equal(layer_taps.front().layer, i);
    };
    layers_.Run(context, i, step, streams, i + 1 < weights_.layers.size() && !is_tapped());
    for (; is_tapped(); layer_taps = layer_taps.subspan(1)) {
      context.ops.hyper()->HyperMean(context, layers_.streams(), streams, layer_taps.front().out);
    }
  }
  if (!in_place) context.ops.Copy(context, streams, kept);
}

void DeepSeekV4Network::RunMtp(const Context& context, const ModulePass& pass, KvCache& cache) {
  OUTRIDER_CHECK(!weights_.mtp.empty(), "a DSpark drafter runs its stages itself");
  const Ops& ops = context.ops;
  const DeepSeekV4MtpWeights& w = weights_.mtp[static_cast<size_t>(pass.m)];
  const size_t layer = weights_.layers.size() + static_cast<size_t>(pass.m);
  const int64_t hidden = layers_.hidden_size();
  const float eps = layers_.streams().norm_eps;
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  const int64_t rows = num_entries + num_outputs;

  // Every stream = e_proj enorm(embedding) + h_proj hnorm(stream).
  const Tensor streams = context.Rows(rows, layers_.width());
  {
    const Scratch::Frame frame(context.arena);
    const Tensor embedding = context.Rows(rows, hidden);
    ops.Embed(context, weights_.embedding, pass.entries, false, embedding.Rows(0, num_entries));
    ops.Embed(context, weights_.embedding, pass.outputs, false,
              embedding.Rows(num_entries, num_outputs));
    ops.Norm(context, embedding, w.embedding_norm, eps, embedding);
    ops.Multiply(context, std::array{Product{.x = embedding,
                                             .w = &w.embedding_projection,
                                             .y = streams.Columns(0, hidden)}});
    layers_.RepeatFirstStream(context, streams);
    const Tensor previous = context.Rows(rows, layers_.width());
    ops.Copy(context, pass.previous.Rows(0, rows), previous);
    const Tensor each = EachStream(previous, hidden);
    ops.Norm(context, each, w.hidden_norm, eps, each);
    ops.Multiply(context, std::array{Product{.x = each,
                                             .w = &w.hidden_projection,
                                             .y = EachStream(streams, hidden),
                                             .accumulate = true}});
  }
  if (num_entries > 0) {
    layers_.WriteEntries(context, layer, layers_.MakeStep(context, pass.entries, cache),
                         streams.Rows(0, num_entries));
  }
  if (num_outputs == 0) return;
  const Tensor out = streams.Rows(num_entries, num_outputs);
  auto step = layers_.MakeStep(context, pass.outputs, cache);
  layers_.Run(context, layer, step, out, /*goes_on=*/false);
  ops.Copy(context, out, pass.hidden.Rows(0, num_outputs));
}

HeadRows DeepSeekV4Network::RunBeforeHead(const Context& context, int32_t module, Tensor hidden,
                                          std::span<const int32_t> rows) {
  const DeepSeekV4HeadWeights& w = module == kTarget
                                       ? weights_.before_head
                                       : weights_.mtp[static_cast<size_t>(module)].before_head;
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor x = context.Rows(count, layers_.hidden_size());
  const Tensor streams = context.Rows(count, hidden.cols);
  head_rows_.resize(rows.size());
  std::iota(head_rows_.begin(), head_rows_.end(), 0);
  copies_.clear();
  for (const int32_t row : head_rows_) copies_.Add(rows[static_cast<size_t>(row)], row);
  context.ops.CopyRows(context, hidden, streams, copies_);
  ContractStreams(context, layers_.streams(), w.streams, streams, x);
  context.ops.Norm(context, x, w.norm, layers_.streams().norm_eps, x);
  return {weights_.head, x, head_rows_, rows};
}

}  // namespace outrider
