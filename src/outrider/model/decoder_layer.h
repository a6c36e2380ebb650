// One pre-norm transformer layer: attention, then a dense MLP or a mixture of experts, each added
// to the residual stream.
#pragma once

#include "outrider/attention/mla_attention.h"
#include "outrider/model/model_weights.h"

namespace outrider {

/// x += attention(norm(x)); x += mlp(norm(x)) for the rows of `layout`; x [rows, hidden]. Writes
/// the rows' keys to `cache`, the cache of this layer.
void DecoderLayerForward(const Compute& compute, const ModelConfig& config, const MlaShape& shape,
                         const LayerWeights& weights, const BatchLayout& layout,
                         const AttentionPlan& plan, const RotaryRows& rotary, LayerCache cache,
                         MatrixView<float> x);

/// Writes the keys of the rows of `layout` as DecoderLayerForward does, and nothing else: for rows
/// whose output nobody reads. x [rows, hidden].
void WriteLayerEntries(const Compute& compute, const ModelConfig& config, const MlaShape& shape,
                       const LayerWeights& weights, const BatchLayout& layout, KvCacheForm form,
                       const RotaryRows& rotary, LayerCache cache, MatrixView<const float> x);

}  // namespace outrider
