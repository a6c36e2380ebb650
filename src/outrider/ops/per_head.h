// Attention over per-head entries, latent or grouped-query.
#pragma once

#include <cstdint>

#include "outrider/kv/layer_cache.h"
#include "outrider/ops/attention_arguments.h"
#include "outrider/ops/context.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {

/// The sizes of attention over per-head entries: a query head and a key are [nope, rope], where the
/// rope part of keys is one for all heads.
struct PerHeadShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;  // heads of an entry; divides heads
  int32_t nope = 0;      // P
  int32_t rope = 0;      // R
  int32_t value = 0;     // V
  int32_t window = 0;    // keys that a row sees, its own included; 0: all
  float softmax_scale = 0;
};

/// What finishes queries, keys and values of grouped-query attention after their product. They may
/// change; keys and values stand side by side.
struct HeadEntryArgs {
  Tensor q = {};                  // [rows, heads * D]; without columns: there are none
  Tensor k;                       // [rows, kv_heads * D]
  Tensor v;                       // [rows, kv_heads * D]
  const float* q_norm = nullptr;  // [D]; null: queries are not normalised
  const float* k_norm = nullptr;  // [D]; null: nor are keys
  float norm_eps = 0;
  Rotary rotary;  // of the first values of a head
  LayerCache cache;
};

/// A facet of Ops (Ops::per_head).
class PerHeadOps {
 public:
  virtual ~PerHeadOps() = default;

  /// q [rows, heads * (P + R)], rotated; out [rows, heads * V]. With gates, a head's output is
  /// multiplied by sigmoid(gate).
  virtual void PerHeadAttention(const Context& context, const PerHeadShape& shape,
                                const StepInputs& inputs, const AttentionArgs& args) const = 0;

  /// Normalises every head of q and k, if asked to, rotates its first values, and writes the rows'
  /// entries.
  virtual void WriteHeadEntries(const Context& context, const PerHeadShape& shape,
                                const StepInputs& inputs, const HeadEntryArgs& args) const = 0;
};

}  // namespace outrider
