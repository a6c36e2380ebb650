// Grouped-query attention (arXiv:2305.13245) over a paged cache of per-head entries, over
// everything or over a window. Step-3.5 normalises queries and keys, and has a gate for each head.
#pragma once

#include "outrider/ops/ops.h"
#include "outrider/ops/per_head.h"

namespace outrider {

struct GqaShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;  // divides heads
  int32_t head_dim = 0;  // D
  int32_t window = 0;    // keys that a row sees, its own included; 0: all
  float softmax_scale = 0;
  bool gates_heads = false;
  float norm_eps = 0;
};

struct GqaWeights {
  Weight q;                       // [heads * D, width of x]
  Weight k;                       // [kv_heads * D, width of x]
  Weight v;                       // [kv_heads * D, width of x]
  Weight gate;                    // [heads, width of x], with GqaShape::gates_heads
  Weight o;                       // [hidden, heads * D]
  const float* q_norm = nullptr;  // [D]; null: queries are not normalised
  const float* k_norm = nullptr;  // [D]; null: nor are keys
};

/// residual += o(sigmoid(gate(x)) * attention(x)) for the rows of a step, or without gates.
/// Queries and keys are normalised head by head, if at all, then their first values are rotated.
/// Writes the rows' entries to `cache` first and reads all keys back from it. All rows take one
/// path, whatever their role. x [rows, width] is the normalised input, residual [rows, hidden].
void GqaForward(const Context& context, const GqaShape& shape, const GqaWeights& weights,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual);

/// Writes the cache entries of the rows as GqaForward does, and nothing else: for rows
/// whose output nobody reads. x [rows, width] is the normalised input.
void WriteGqaEntries(const Context& context, const GqaShape& shape, const GqaWeights& weights,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x);

}  // namespace outrider
