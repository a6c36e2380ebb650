#include "outrider/layers/mla_attention.h"

#include <array>

#include "outrider/base/error.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/per_head.h"

namespace outrider {

MlaShape ShapeOf(const MlaSpec& a) {
  return {.heads = static_cast<int32_t>(a.heads),
          .q_lora = static_cast<int32_t>(a.q_lora),
          .latent = static_cast<int32_t>(a.latent),
          .nope = static_cast<int32_t>(a.nope),
          .rope = static_cast<int32_t>(a.rope),
          .value = static_cast<int32_t>(a.value),
          .softmax_scale = static_cast<float>(a.softmax_scale),
          .norm_eps = static_cast<float>(a.latent_norm_eps),
          .gates_heads = a.gates_heads};
}

namespace {

bool ReadsPerHead(const StepInputs& inputs) {
  return inputs.paths().latent_form() == KvCacheForm::kHeads;
}

void WriteEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const StepInputs& inputs, const EntryArgs& args) {
  if (ReadsPerHead(inputs)) {
    context.ops.mla_per_head()->WritePerHeadEntries(context, s, w.kv_up, inputs, args);
  } else {
    context.ops.mla()->WriteLatentEntries(context, s, inputs, args);
  }
}

/// Queries q [rows, heads * (P + R)], not rotated.
Tensor ProjectQueriesAndWriteCache(const Context& context, const MlaShape& s, const MlaWeights& w,
                                   const StepInputs& inputs, const Rotary& rotary, LayerCache cache,
                                   Tensor x) {
  const Ops& ops = context.ops;
  const int64_t query = int64_t{s.heads} * (s.nope + s.rope);
  // What both first products give stands side by side, so that a device may run them as one.
  const Tensor down = context.Activations(x.rows, w.q_a.rows + w.kv_a.rows);
  const Tensor q_down = down.Columns(0, w.q_a.rows);
  const Tensor kv = down.Columns(w.q_a.rows, w.kv_a.rows);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = q_down},
                                   Product{.x = x, .w = &w.kv_a, .y = kv}});
  EntryArgs entries = {.kv = kv, .norm = w.kv_a_norm, .rotary = rotary, .cache = cache};
  if (s.q_lora == 0) {
    WriteEntries(context, s, w, inputs, entries);
    return q_down;
  }
  entries.q_down = q_down;
  entries.q_norm = w.q_a_norm;
  entries.q_latent = context.Activations(x.rows, s.q_lora);
  WriteEntries(context, s, w, inputs, entries);
  const Tensor q = context.Activations(x.rows, query);
  ops.Multiply(context, std::array{Product{.x = entries.q_latent, .w = &w.q_b, .y = q}});
  return q;
}

/// Attention of the decode rows.
void AbsorbedForm(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor q,
                  Tensor out) {
  const Scratch::Frame frame(context.arena);
  const auto [first_row, rows] = inputs.decode_rows();
  const Tensor absorbed = context.Activations(rows, int64_t{s.heads} * (s.latent + s.rope));
  const Tensor latent_out = context.Activations(rows, int64_t{s.heads} * s.latent);
  context.ops.mla()->Absorb(context, s, w.kv_up, AnglesOf(rotary, first_row, rows),
                            q.Rows(first_row, rows), absorbed);
  context.ops.mla()->DecodeAttention(context, s, inputs,
                                     {.q = absorbed, .out = latent_out, .cache = cache});
  context.ops.mla()->Unabsorb(context, s, w.kv_up, latent_out, out.Rows(first_row, rows));
}

/// Rotates rows [first, end) in place.
void RotateQueries(const Context& context, const MlaShape& s, const Rotary& rotary, Tensor q,
                   int64_t first, int64_t end) {
  if (first == end) return;
  context.ops.Rotate(context, q.Rows(first, end - first), s.heads, s.nope,
                     AnglesOf(rotary, first, end - first));
}

}  // namespace

void MlaForward(const Context& context, const MlaShape& shape, const MlaWeights& weights,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual) {
  const bool per_head = ReadsPerHead(inputs);
  OUTRIDER_CHECK(inputs.paths().Has(per_head ? RowPath::kPerHead : RowPath::kAbsorbed));
  const Scratch::Frame frame(context.arena);
  const Tensor q = ProjectQueriesAndWriteCache(context, shape, weights, inputs, rotary, cache, x);
  OUTRIDER_CHECK(q.stride == shape.query_stride());
  const Tensor out = context.Activations(x.rows, int64_t{shape.heads} * shape.value);
  // Absorption rotates the queries of decode rows.
  const auto [first_decode, num_decode] = per_head ? RowRange() : inputs.decode_rows();
  RotateQueries(context, shape, rotary, q, 0, first_decode);
  RotateQueries(context, shape, rotary, q, first_decode + num_decode, x.rows);
  const AttentionArgs args = {.q = q, .out = out, .cache = cache};
  if (per_head) {
    context.ops.per_head()->PerHeadAttention(context,
                                             {.heads = shape.heads,
                                              .kv_heads = shape.heads,
                                              .nope = shape.nope,
                                              .rope = shape.rope,
                                              .value = shape.value,
                                              .softmax_scale = shape.softmax_scale},
                                             inputs, args);
  }
  if (num_decode > 0) AbsorbedForm(context, shape, weights, inputs, rotary, cache, q, out);
  if (!per_head && inputs.has_expanded_rows()) {
    context.ops.mla()->PromptAttention(context, shape, weights.kv_up, inputs, args);
  }
  if (shape.gates_heads) {
    const Tensor gates = context.Rows(x.rows, shape.heads);
    context.ops.Multiply(context, std::array{Product{.x = x, .w = &weights.gate, .y = gates}});
    context.ops.delta()->GateHeads(context, gates, out);
  }
  context.ops.Multiply(
      context, std::array{Product{.x = out, .w = &weights.o, .y = residual, .accumulate = true}});
}

void WriteMlaEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Activations(x.rows, s.latent + s.rope);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv_a, .y = kv}});
  WriteEntries(context, s, w, inputs,
               {.kv = kv, .norm = w.kv_a_norm, .rotary = rotary, .cache = cache});
}

}  // namespace outrider
