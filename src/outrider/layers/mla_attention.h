// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1) over a paged cache. Latent
// entries: the absorbed form for generated tokens, the expanded form for prompt tokens, both in one
// step. Per-head entries: one form for all.
#pragma once

#include "outrider/checkpoint/layer_spec.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// The sizes of a layer's latent attention.
MlaShape ShapeOf(const MlaSpec& spec);

/// The weights of an indexer (sparse_attention.h).
struct SparseIndexerWeights {
  Weight queries;                    // wq_b [heads * D, q_lora]
  Weight keys;                       // wk [D, hidden]
  const float* norm = nullptr;       // [D]
  const float* norm_bias = nullptr;  // [D]
  Weight weights;                    // weights_proj [heads, hidden]
};

/// The weights of one layer's attention.
struct MlaWeights {
  Weight q_a;                        // [q_lora, hidden]; without q_lora [heads * (P + R), hidden]
  Weight q_b;                        // [heads * (P + R), q_lora]; absent without q_lora
  Weight kv_a;                       // [L + R, hidden]
  Weight o;                          // [hidden, heads * V]
  Weight gate;                       // [heads, hidden]; absent without MlaShape::gates_heads
  const float* q_a_norm = nullptr;   // [q_lora]
  const float* kv_a_norm = nullptr;  // [L]
  KvUpWeight kv_up;
  SparseIndexerWeights indexer;  // where the layer has one
};

/// residual += o_proj(attention(x)) for the rows of a step; writes their entries to `cache` first
/// and reads all keys back from it, so a key's bits do not depend on when it was computed. x [rows,
/// hidden] is the normalised input, residual [rows, hidden].
void MlaForward(const Context& context, const MlaShape& shape, const MlaWeights& weights,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual);

/// Writes the cache entries of the rows as MlaForward does, and nothing else: for rows
/// whose output nobody reads. x [rows, hidden] is the normalised input.
void WriteMlaEntries(const Context& context, const MlaShape& shape, const MlaWeights& weights,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x);

}  // namespace outrider
