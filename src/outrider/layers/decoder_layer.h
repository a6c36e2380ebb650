// One pre-norm transformer layer: attention, then an MLP, each added to the residual stream.
#pragma once

#include <variant>

#include "outrider/layers/gqa_attention.h"
#include "outrider/layers/kda_attention.h"
#include "outrider/layers/mla_attention.h"
#include "outrider/layers/mlp.h"
#include "outrider/layers/sparse_attention.h"

namespace outrider {

struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden]
  std::variant<MlaWeights, GqaWeights, KdaWeights> attention;
  const float* post_attention_norm = nullptr;  // [hidden]
  std::variant<MlpWeights, MoeWeights> mlp;
};

/// A layer: what it is, and its weights, of the same kinds.
struct DecoderLayer {
  LayerSpec spec;
  float norm_eps = 0;
  int32_t rotary_kind = 0;       // of the network's RotaryKinds
  int32_t first_state_head = 0;  // of linear attention, among the heads of all such layers
  LayerWeights weights;
};

/// What a layer gets of a step.
struct LayerStep {
  const StepInputs& inputs;
  std::span<const Rotary> rotary;  // by kind, of inputs.attended()
  StateCache state = {};           // of linear attention
  ChosenExperts chosen = {};       // of this layer, where somebody asks
};

/// What a layer keeps in the cache; index_keys where it has an indexer.
using LayerCaches = SparseCaches;

/// x += attention(h) of a layer. inputs: of the rows h and x, as the rotary embeddings of `step`. h
/// [rows, width that attention reads], x [rows, hidden].
void AttentionForward(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                      const LayerCaches& caches, const StepInputs& inputs, Tensor h, Tensor x);

/// Writes the keys of rows as AttentionForward does, and nothing else.
void WriteAttentionEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                           const LayerCaches& caches, const StepInputs& inputs, Tensor h);

/// x += attention(h); x += mlp(norm(x)) for the rows of the step, then the norm of x. x
/// [rows, hidden]; h [rows, hidden] is x after the layer's input norm, and is overwritten: norm.out
/// may be h. Writes the rows' keys to `caches`, those of this layer.
void DecoderLayerForward(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                         const LayerCaches& caches, Tensor x, Tensor h, const NormOut& norm);

/// Writes the keys of the rows of the step as DecoderLayerForward does, and nothing else: for rows
/// whose output nobody reads. Of the plan only its form of the cache is read. x [rows, hidden].
void WriteLayerEntries(const Context& context, const DecoderLayer& layer, const LayerStep& step,
                       const LayerCaches& caches, Tensor x);

}  // namespace outrider
