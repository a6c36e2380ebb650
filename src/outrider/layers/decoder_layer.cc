#include "outrider/layers/decoder_layer.h"

#include <algorithm>

namespace outrider {

namespace {

// The MLP's intermediate values are wide: rows go through in tiles of this many to bound memory.
constexpr int64_t kMlpTile = 512;

MlaShape ShapeOf(const LayerSpec& spec) {
  const auto& a = std::get<MlaSpec>(spec.attention);
  return {.heads = static_cast<int32_t>(a.heads),
          .q_lora = static_cast<int32_t>(a.q_lora),
          .latent = static_cast<int32_t>(a.latent),
          .nope = static_cast<int32_t>(a.nope),
          .rope = static_cast<int32_t>(a.rope),
          .value = static_cast<int32_t>(a.value),
          .softmax_scale = static_cast<float>(a.softmax_scale),
          .norm_eps = static_cast<float>(a.latent_norm_eps)};
}

void Mlp(const Compute& compute, const DecoderLayer& layer, MatrixView<const float> h,
         MatrixView<float> x) {
  const LayerWeights& w = layer.weights;
  if (const MoeSpec* moe = layer.spec.moe()) {
    MixtureOfExperts(compute, *moe, std::get<MoeWeights>(w.mlp), h, x);
  } else {
    DenseMlp(compute, std::get<MlpWeights>(w.mlp), h, x);
  }
}

}  // namespace

void DecoderLayerForward(const Compute& compute, const DecoderLayer& layer, const LayerStep& step,
                         LayerCache cache, MatrixView<float> x) {
  const LayerWeights& w = layer.weights;
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> h = compute.scratch.Matrix(x.rows, x.cols);
  compute.kernels.rms_norm(compute.pool, x, w.input_norm, layer.norm_eps, h);
  MlaForward(compute, ShapeOf(layer.spec), std::get<MlaWeights>(w.attention), step.layout,
             step.plan, step.rotary[static_cast<size_t>(layer.rotary_kind)], cache, h, x);
  compute.kernels.rms_norm(compute.pool, x, w.post_attention_norm, layer.norm_eps, h);
  for (int64_t first = 0; first < x.rows; first += kMlpTile) {
    const int64_t count = std::min(kMlpTile, x.rows - first);
    Mlp(compute, layer, h.Rows(first, count), x.Rows(first, count));
  }
}

void WriteLayerEntries(const Compute& compute, const DecoderLayer& layer, const LayerStep& step,
                       LayerCache cache, MatrixView<const float> x) {
  const Scratch::Frame frame(compute.scratch);
  const MatrixView<float> h = compute.scratch.Matrix(x.rows, x.cols);
  compute.kernels.rms_norm(compute.pool, x, layer.weights.input_norm, layer.norm_eps, h);
  WriteMlaEntries(compute, ShapeOf(layer.spec), std::get<MlaWeights>(layer.weights.attention),
                  step.layout, step.plan.cache_form(),
                  step.rotary[static_cast<size_t>(layer.rotary_kind)], cache, h);
}

}  // namespace outrider
