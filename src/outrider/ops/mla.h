// Operations of multi-head latent attention.
#pragma once

#include <cstdint>

#include "outrider/kv/layer_cache.h"
#include "outrider/ops/attention_arguments.h"
#include "outrider/ops/context.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// The sizes of a layer's latent attention.
struct MlaShape {
  int32_t heads = 0;
  int32_t q_lora = 0;  // 0: one q projection
  int32_t latent = 0;  // L, kv_lora_rank
  int32_t nope = 0;    // P
  int32_t rope = 0;    // R
  int32_t value = 0;   // V
  float softmax_scale = 0;
  float norm_eps = 0;        // of the two latent norms
  bool gates_heads = false;  // a head's output is multiplied by the sigmoid of a gate

  /// Columns from a row of attention's queries to the next: without q_lora one product gives
  /// queries and entries side by side.
  int64_t query_stride() const {
    return int64_t{heads} * (nope + rope) + (q_lora == 0 ? latent + rope : 0);
  }
};

/// What writes the cache entries of a step's rows.
struct EntryArgs {
  Tensor kv;                    // [rows, L + R], not yet normalised nor rotated; it may change
  const float* norm = nullptr;  // [L]
  Rotary rotary;
  LayerCache cache;
  // With q_norm the queries' latent is normalised in the same launch: q_latent = norm(q_down).
  Tensor q_down = {};             // [rows, q_lora]
  const float* q_norm = nullptr;  // [q_lora]
  Tensor q_latent = {};           // [rows, q_lora]
};

/// A facet of Ops: attention over latent entries (Ops::mla).
class MlaOps {
 public:
  virtual ~MlaOps() = default;

  /// Begins to load libraries and to make plans that the first prompts of such layers would wait
  /// for. It returns at once. What fails is thrown by the first PromptAttention.
  virtual void PreparePrompts(const MlaShape& /*shape*/) const {}

  virtual void WriteLatentEntries(const Context& context, const MlaShape& shape,
                                  const StepInputs& inputs, const EntryArgs& args) const = 0;

  /// Makes absorbed [rows, heads * (L + R)], rotated, of q [rows, heads * (P + R)], not rotated.
  /// `rotary` has the angles of these rows.
  virtual void Absorb(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                      const Rotary& rotary, Tensor q, Tensor absorbed) const = 0;

  /// Makes out [rows, heads * V] of latent [rows, heads * L].
  virtual void Unabsorb(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                        Tensor latent, Tensor out) const = 0;

  /// Attention of generated tokens over latent entries, with the decode kernel of the plan's
  /// backend: inputs.decode_rows(). q [decode rows, heads * (L + R)]: per head the absorbed query,
  /// then its rotated part; out [decode rows, heads * L].
  virtual void DecodeAttention(const Context& context, const MlaShape& shape,
                               const StepInputs& inputs, const AttentionArgs& args) const = 0;

  /// Attention of the other rows over latent entries, in the expanded form. Decode requests that
  /// the decode kernel did not take attend to the context and to their new tokens; both are merged
  /// by log-sum-exp. q [rows, heads * (P + R)], rotated; out [rows, heads * V].
  virtual void PromptAttention(const Context& context, const MlaShape& shape, const KvUpWeight& w,
                               const StepInputs& inputs, const AttentionArgs& args) const = 0;
};

/// A facet of Ops: entries that hold every head (Ops::mla_per_head), which PerHeadOps attends to.
class PerHeadMlaOps {
 public:
  virtual ~PerHeadMlaOps() = default;

  virtual void WritePerHeadEntries(const Context& context, const MlaShape& shape,
                                   const KvUpWeight& w, const StepInputs& inputs,
                                   const EntryArgs& args) const = 0;
};

}  // namespace outrider
