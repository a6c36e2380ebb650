#include "outrider/layers/mla_attention.h"

#include <array>

namespace outrider {

namespace {

/// kv [rows, L + R]: the latent projection, not yet normalised nor rotated; it may be changed.
void WriteEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor kv) {
  const EntryArgs args = {.kv = kv, .norm = w.kv_a_norm, .rotary = rotary, .cache = cache};
  if (inputs.cache_form() == KvCacheForm::kHeads) {
    context.ops.WritePerHeadEntries(context, s, w.kv_up, inputs, args);
  } else {
    context.ops.WriteLatentEntries(context, s, inputs, args);
  }
}

/// q [rows, heads * (P + R)], rotated.
Tensor ProjectQueriesAndWriteCache(const Context& context, const MlaShape& s, const MlaWeights& w,
                                   const StepInputs& inputs, const Rotary& rotary, LayerCache cache,
                                   Tensor x) {
  const Ops& ops = context.ops;
  const int64_t rows = x.rows;
  const Tensor kv = context.Rows(rows, s.latent + s.rope);
  const Tensor q = context.Rows(rows, int64_t{s.heads} * (s.nope + s.rope));
  const Product to_kv{.x = x, .w = &w.kv_a, .y = kv};
  if (s.q_lora > 0) {
    const Tensor q_latent = context.Rows(rows, s.q_lora);
    ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = q_latent}, to_kv});
    ops.Norm(context, q_latent, w.q_a_norm, s.norm_eps, q_latent);
    ops.Multiply(context, std::array{Product{.x = q_latent, .w = &w.q_b, .y = q}});
  } else {
    ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_b, .y = q}, to_kv});
  }
  ops.Rotate(context, q, s.heads, s.nope, rotary);
  WriteEntries(context, s, w, inputs, rotary, cache, kv);
  return q;
}

/// Of the decode rows.
void AbsorbedForm(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const StepInputs& inputs, LayerCache cache, Tensor q, Tensor out) {
  const Scratch::Frame frame(context.arena);
  const auto [first_row, rows] = inputs.decode_rows();
  const Tensor absorbed = context.Rows(rows, int64_t{s.heads} * (s.latent + s.rope));
  const Tensor latent_out = context.Rows(rows, int64_t{s.heads} * s.latent);
  context.ops.Absorb(context, s, w.kv_up, q.Rows(first_row, rows), absorbed);
  context.ops.DecodeAttention(context, s, inputs,
                              {.q = absorbed, .out = latent_out, .cache = cache});
  context.ops.Unabsorb(context, s, w.kv_up, latent_out, out.Rows(first_row, rows));
}

}  // namespace

void MlaForward(const Context& context, const MlaShape& shape, const MlaWeights& weights,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Tensor q = ProjectQueriesAndWriteCache(context, shape, weights, inputs, rotary, cache, x);
  const Tensor out = context.Rows(x.rows, int64_t{shape.heads} * shape.value);
  const AttentionArgs args = {.q = q, .out = out, .cache = cache};
  if (inputs.cache_form() == KvCacheForm::kHeads) {
    context.ops.PerHeadAttention(context,
                                 {.heads = shape.heads,
                                  .kv_heads = shape.heads,
                                  .nope = shape.nope,
                                  .rope = shape.rope,
                                  .value = shape.value,
                                  .softmax_scale = shape.softmax_scale},
                                 inputs, args);
  }
  if (inputs.decode_rows().count > 0) AbsorbedForm(context, shape, weights, inputs, cache, q, out);
  if (inputs.has_expanded_rows()) {
    context.ops.PromptAttention(context, shape, weights.kv_up, inputs, args);
  }
  context.ops.Multiply(
      context, std::array{Product{.x = out, .w = &weights.o, .y = residual, .accumulate = true}});
}

void WriteMlaEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Rows(x.rows, s.latent + s.rope);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv_a, .y = kv}});
  WriteEntries(context, s, w, inputs, rotary, cache, kv);
}

}  // namespace outrider
