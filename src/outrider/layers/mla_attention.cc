#include "outrider/layers/mla_attention.h"

#include <array>

#include "outrider/layers/attention_spans.h"

namespace outrider {

namespace {

/// kv [rows, L + R]: the latent projection, not yet normalised nor rotated; it may be changed.
void WriteEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const BatchLayout& layout, KvCacheForm form, const Rotary& rotary,
                  LayerCache cache, Tensor kv) {
  const EntryArgs args = {.kv = kv,
                          .norm = w.kv_a_norm,
                          .rotary = rotary,
                          .slots = layout.slot_mapping(cache.group).data(),
                          .cache = cache};
  if (form == KvCacheForm::kHeads) {
    context.ops.WritePerHeadEntries(context, s, w.kv_up, args);
  } else {
    context.ops.WriteLatentEntries(context, s, args);
  }
}

/// q [rows, heads * (P + R)], rotated.
Tensor ProjectQueriesAndWriteCache(const Context& context, const MlaShape& s, const MlaWeights& w,
                                   const BatchLayout& layout, KvCacheForm form,
                                   const Rotary& rotary, LayerCache cache, Tensor x) {
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
  WriteEntries(context, s, w, layout, form, rotary, cache, kv);
  return q;
}

/// The plan's decode runs, with the decode kernel of its backend.
void AbsorbedForm(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const AttentionPlan& plan, LayerCache cache, Tensor q, Tensor out) {
  const Scratch::Frame frame(context.arena);
  const int32_t first_row = plan.first_decode_row();
  const int32_t rows = plan.num_decode_rows();
  const Tensor absorbed = context.Rows(rows, int64_t{s.heads} * (s.latent + s.rope));
  const Tensor latent_out = context.Rows(rows, int64_t{s.heads} * s.latent);
  context.ops.Absorb(context, s, w.kv_up, q.Rows(first_row, rows), absorbed);
  const DecodeKernel kernel = DecodeKernelOf(plan.backend());
  const bool ragged = kernel.lengths == QueryLengths::kRagged;
  context.ops.DecodeAttention(
      context, s,
      {.q = absorbed,
       .out = latent_out,
       .cache = cache,
       .requests = AttentionSpans(context, plan.decode_runs(), first_row, cache.group),
       .uniform_length = ragged ? 0 : plan.query_length(),
       .pads = kernel.lengths == QueryLengths::kUniform && kernel.policy == UniformPolicy::kPad});
  context.ops.Unabsorb(context, s, w.kv_up, latent_out, out.Rows(first_row, rows));
}

}  // namespace

void MlaForward(const Context& context, const MlaShape& shape, const MlaWeights& weights,
                const BatchLayout& layout, const AttentionPlan& plan, const Rotary& rotary,
                LayerCache cache, Tensor x, Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Tensor q = ProjectQueriesAndWriteCache(context, shape, weights, layout, plan.cache_form(),
                                               rotary, cache, x);
  const Tensor out = context.Rows(x.rows, int64_t{shape.heads} * shape.value);
  if (!plan.per_head().empty()) {
    context.ops.PerHeadAttention(
        context,
        {.heads = shape.heads,
         .kv_heads = shape.heads,
         .nope = shape.nope,
         .rope = shape.rope,
         .value = shape.value,
         .softmax_scale = shape.softmax_scale},
        {.q = q,
         .out = out,
         .cache = cache,
         .requests = AttentionSpans(context, plan.per_head(), 0, cache.group)});
  }
  if (!plan.decode_runs().empty()) {
    AbsorbedForm(context, shape, weights, plan, cache, q, out);
  }
  if (!plan.prompts().empty() || !plan.left_over().empty()) {
    context.ops.PromptAttention(
        context, shape, weights.kv_up,
        {.q = q,
         .out = out,
         .cache = cache,
         .prompts = AttentionSpans(context, plan.prompts(), 0, cache.group),
         .left_over = AttentionSpans(context, plan.left_over(), 0, cache.group)});
  }
  context.ops.Multiply(
      context, std::array{Product{.x = out, .w = &weights.o, .y = residual, .accumulate = true}});
}

void WriteMlaEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                     const BatchLayout& layout, KvCacheForm form, const Rotary& rotary,
                     LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Rows(x.rows, s.latent + s.rope);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv_a, .y = kv}});
  WriteEntries(context, s, w, layout, form, rotary, cache, kv);
}

}  // namespace outrider
