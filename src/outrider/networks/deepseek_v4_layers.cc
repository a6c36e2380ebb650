#include "outrider/networks/deepseek_v4_layers.h"

#include "outrider/layers/own_rows.h"
#include "outrider/networks/network.h"
#include "outrider/ops/hyper.h"

namespace outrider {

namespace {

HyperShape ShapeOfStreams(const ModelConfig& config) {
  const HyperConnectionSpec& residual = config.layers.front().residual;
  return {.streams = static_cast<int32_t>(residual.streams),
          .iterations = static_cast<int32_t>(residual.iterations),
          .eps = static_cast<float>(residual.eps),
          .norm_eps = static_cast<float>(config.rms_norm_eps)};
}

}  // namespace

DeepSeekV4Layers::DeepSeekV4Layers(const ModelConfig& config)
    : streams_(ShapeOfStreams(config)), hidden_size_(config.hidden_size) {}

void DeepSeekV4Layers::Add(const ModelConfig& config, int64_t index,
                           const DeepSeekV4LayerWeights& weights) {
  const LayerSpec& spec = config.layer(index);
  const int32_t first = FirstCacheLayer(config, index);
  layers_.push_back({.spec = spec,
                     .weights = &weights,
                     .forward = rotary_.Add(spec.rotary),
                     .back = rotary_.Add(spec.rotary, /*inverse=*/true),
                     .first_cache_layer = first,
                     .num_cache_layers = FirstCacheLayer(config, index + 1) - first});
}

template <typename Attend>
void DeepSeekV4Layers::WithAttention(const Layer& layer, const Step& step, const StepInputs& inputs,
                                     Attend attend) const {
  std::vector<LayerCache> caches;
  caches.reserve(static_cast<size_t>(layer.num_cache_layers));
  for (int32_t c = 0; c < layer.num_cache_layers; ++c) {
    caches.push_back(step.cache.layer(layer.first_cache_layer + c));
  }
  attend(CompressedStep{.inputs = inputs,
                        .rotary = step.rotary[static_cast<size_t>(layer.forward)],
                        .back = step.rotary[static_cast<size_t>(layer.back)],
                        .frequencies = rotary_.frequencies(layer.forward),
                        .magnitude = static_cast<float>(layer.spec.rotary.Magnitude()),
                        .norm_eps = streams_.norm_eps,
                        .caches = caches,
                        .in_blocks = step.in_blocks});
}

void DeepSeekV4Layers::RepeatFirstStream(const Context& context, Tensor streams) const {
  for (int64_t first = hidden_size_; first < streams.cols; first += hidden_size_) {
    context.ops.Copy(context, streams.Columns(0, hidden_size_),
                     streams.Columns(first, hidden_size_));
  }
}

void DeepSeekV4Layers::Run(const Context& context, size_t i, Step& step, Tensor streams,
                           bool goes_on) const {
  const Ops& ops = context.ops;
  const Layer& layer = layers_[i];
  const DeepSeekV4LayerWeights& w = *layer.weights;
  if (step.added.y.rows == 0) {
    step.x = context.Activations(streams.rows, hidden_size_);
    step.added = {.y = context.Rows(streams.rows, hidden_size_),
                  .weights = WeightsOfStreams(context, streams.rows)};
  }
  const Tensor x = step.x;
  const Tensor y = step.added.y;
  const auto mix = [&](const HyperWeights& part, const float* norm, const HyperAddArgs& add) {
    MixStreams(context, streams_, part, norm, add, streams, x, step.added.weights);
  };
  if (!step.is_mixed) mix(w.attention_streams, w.attention_norm, {});
  AttendToOwnRows(context, step.inputs, x, y,
                  [&](const Context& own, const StepInputs& inputs, Tensor own_x, Tensor own_y) {
                    WithAttention(layer, step, inputs, [&](const CompressedStep& attention) {
                      CompressedForward(own, layer.attention(), w.attention, attention, own_x,
                                        own_y);
                    });
                  });
  mix(w.mlp_streams, w.mlp_norm, step.added);
  const Scratch::Frame frame(context.arena);
  HyperAddArgs added = step.added;
  ExpertSum sum;
  if (x.rows <= ops.mlp_tile()) {
    sum = ExpertOutputs(context, *layer.spec.moe(), w.mlp, step.inputs, x, step.chosen);
    added.experts = &sum;
  } else {
    ops.SetZero(context, y);
    MixtureOfExperts(context, *layer.spec.moe(), w.mlp, step.inputs, x, y, {}, step.chosen);
  }
  if (goes_on) {
    const DeepSeekV4LayerWeights& next = *layers_[i + 1].weights;
    mix(next.attention_streams, next.attention_norm, added);
  } else {
    ops.hyper()->HyperAdd(context, streams_, added, streams);
  }
  step.is_mixed = goes_on;
}

Tensor DeepSeekV4Layers::WeightsOfStreams(const Context& context, int64_t rows) const {
  return context.Rows(rows, int64_t{1 + streams_.streams} * streams_.streams);
}

void DeepSeekV4Layers::WriteEntries(const Context& context, size_t i, const Step& step,
                                    Tensor streams) const {
  const Scratch::Frame frame(context.arena);
  const DeepSeekV4LayerWeights& w = *layers_[i].weights;
  const Tensor x = context.Activations(streams.rows, hidden_size_);
  MixStreams(context, streams_, w.attention_streams, w.attention_norm, {}, streams, x,
             WeightsOfStreams(context, streams.rows));
  WriteEntriesOf(context, i, step, x);
}

void DeepSeekV4Layers::WriteEntriesOf(const Context& context, size_t i, const Step& step,
                                      Tensor x) const {
  const Layer& layer = layers_[i];
  WriteOwnEntries(
      context, step.inputs, x, [&](const Context& own, const StepInputs& inputs, Tensor rows) {
        WithAttention(layer, step, inputs, [&](const CompressedStep& attention) {
          WriteWindowRows(own, layer.attention(), layer.weights->attention, attention, rows);
        });
      });
}

}  // namespace outrider
