#include "outrider/layers/decoder_layer.h"

namespace outrider {

namespace {

GqaShape ShapeOf(const GqaSpec& a, float norm_eps) {
  return {.heads = static_cast<int32_t>(a.heads),
          .kv_heads = static_cast<int32_t>(a.kv_heads),
          .head_dim = static_cast<int32_t>(a.head_dim),
          .window = static_cast<int32_t>(a.window),
          .softmax_scale = static_cast<float>(a.softmax_scale),
          .norm_eps = norm_eps};
}

/// x += attention(h).
void Attention(const Context& context, const DecoderLayer& layer, const LayerStep& step,
               LayerCache cache, Tensor h, Tensor x) {
  const Rotary& rotary = step.rotary[static_cast<size_t>(layer.rotary_kind)];
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.spec.attention)) {
    GqaForward(context, ShapeOf(*gqa, layer.norm_eps),
               std::get<GqaWeights>(layer.weights.attention), step.inputs, rotary, cache, h, x);
    return;
  }
  MlaForward(context, ShapeOf(std::get<MlaSpec>(layer.spec.attention)),
             std::get<MlaWeights>(layer.weights.attention), step.inputs, rotary, cache, h, x);
}

void AttentionEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                      LayerCache cache, Tensor h) {
  const Rotary& rotary = step.rotary[static_cast<size_t>(layer.rotary_kind)];
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.spec.attention)) {
    WriteGqaEntries(context, ShapeOf(*gqa, layer.norm_eps),
                    std::get<GqaWeights>(layer.weights.attention), step.inputs, rotary, cache, h);
    return;
  }
  WriteMlaEntries(context, ShapeOf(std::get<MlaSpec>(layer.spec.attention)),
                  std::get<MlaWeights>(layer.weights.attention), step.inputs, rotary, cache, h);
}

void Mlp(const Context& context, const DecoderLayer& layer, const StepInputs& inputs, Tensor h,
         Tensor x, const NormOut& norm) {
  const LayerWeights& w = layer.weights;
  if (const MoeSpec* moe = layer.spec.moe()) {
    MixtureOfExperts(context, *moe, std::get<MoeWeights>(w.mlp), inputs, h, x, norm);
  } else {
    DenseMlp(context, *layer.spec.dense(), std::get<MlpWeights>(w.mlp), h, x, norm);
  }
}

}  // namespace

void DecoderLayerForward(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                         LayerCache cache, Tensor x, Tensor h, const NormOut& norm) {
  Attention(context, layer, step, cache, h, x);
  context.ops.Norm(context, x, layer.weights.post_attention_norm, layer.norm_eps, h);
  Mlp(context, layer, step.inputs, h, x, norm);
}

void WriteLayerEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                       LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor h = context.Activations(x.rows, x.cols);
  context.ops.Norm(context, x, layer.weights.input_norm, layer.norm_eps, h);
  AttentionEntries(context, layer, step, cache, h);
}

}  // namespace outrider
