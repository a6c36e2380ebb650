#include "outrider/layers/decoder_layer.h"

#include "outrider/base/error.h"
#include "outrider/layers/own_rows.h"

namespace outrider {

namespace {

GqaShape ShapeOf(const GqaSpec& a, float norm_eps) {
  return {.heads = static_cast<int32_t>(a.heads),
          .kv_heads = static_cast<int32_t>(a.kv_heads),
          .head_dim = static_cast<int32_t>(a.head_dim),
          .window = static_cast<int32_t>(a.window),
          .softmax_scale = static_cast<float>(a.softmax_scale),
          .gates_heads = a.gates_heads,
          .norm_eps = norm_eps};
}

void Mlp(const Context& context, const DecoderLayer& layer, const LayerStep& step, Tensor h,
         Tensor x, const NormOut& norm) {
  const LayerWeights& w = layer.weights;
  if (const MoeSpec* moe = layer.spec.moe()) {
    MixtureOfExperts(context, *moe, std::get<MoeWeights>(w.mlp), step.inputs, h, x, norm,
                     step.chosen);
  } else {
    DenseMlp(context, *layer.spec.dense(), std::get<MlpWeights>(w.mlp), h, x, norm);
  }
}

}  // namespace

void AttentionForward(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                      const LayerCaches& caches, const StepInputs& inputs, Tensor h, Tensor x) {
  if (const auto* kda = std::get_if<KdaSpec>(&layer.spec.attention)) {
    KdaForward(context, *kda, std::get<KdaWeights>(layer.weights.attention),
               {inputs, step.state, layer.first_state_head, layer.norm_eps}, h, x);
    return;
  }
  const Rotary& rotary = step.rotary[static_cast<size_t>(layer.rotary_kind)];
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.spec.attention)) {
    GqaForward(context, ShapeOf(*gqa, layer.norm_eps),
               std::get<GqaWeights>(layer.weights.attention), inputs, rotary, caches.entries, h, x);
    return;
  }
  const auto& mla = std::get<MlaSpec>(layer.spec.attention);
  const auto& weights = std::get<MlaWeights>(layer.weights.attention);
  if (mla.indexer) {
    SparseMlaForward(context, mla, weights, inputs, rotary, caches, h, x);
  } else {
    MlaForward(context, ShapeOf(mla), weights, inputs, rotary, caches.entries, h, x);
  }
}

void WriteAttentionEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                           const LayerCaches& caches, const StepInputs& inputs, Tensor h) {
  OUTRIDER_CHECK(!std::holds_alternative<KdaSpec>(layer.spec.attention),
                 "linear attention keeps no entries");
  const Rotary& rotary = step.rotary[static_cast<size_t>(layer.rotary_kind)];
  if (const auto* gqa = std::get_if<GqaSpec>(&layer.spec.attention)) {
    WriteGqaEntries(context, ShapeOf(*gqa, layer.norm_eps),
                    std::get<GqaWeights>(layer.weights.attention), inputs, rotary, caches.entries,
                    h);
    return;
  }
  const auto& mla = std::get<MlaSpec>(layer.spec.attention);
  const auto& weights = std::get<MlaWeights>(layer.weights.attention);
  if (mla.indexer) {
    WriteSparseMlaEntries(context, mla, weights, inputs, rotary, caches, h);
  } else {
    WriteMlaEntries(context, ShapeOf(mla), weights, inputs, rotary, caches.entries, h);
  }
}

void DecoderLayerForward(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                         const LayerCaches& caches, Tensor x, Tensor h, const NormOut& norm) {
  AttendToOwnRows(context, step.inputs, h, x,
                  [&](const Context& own, const StepInputs& inputs, Tensor own_h, Tensor own_x) {
                    AttentionForward(own, layer, step, caches, inputs, own_h, own_x);
                  });
  context.ops.Norm(context, x, layer.weights.post_attention_norm, layer.norm_eps, h);
  Mlp(context, layer, step, h, x, norm);
}

void WriteLayerEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                       const LayerCaches& caches, Tensor x) {
  WriteOwnEntries(context, step.inputs, x,
                  [&](const Context& own, const StepInputs& inputs, Tensor rows) {
                    const Scratch::Frame frame(own.arena);
                    const Tensor h = own.Activations(rows.rows, rows.cols);
                    own.ops.Norm(own, rows, layer.weights.input_norm, layer.norm_eps, h);
                    WriteAttentionEntries(own, layer, step, caches, inputs, h);
                  });
}

}  // namespace outrider
