#include "outrider/layers/mla_attention.h"

#include <array>

namespace outrider {

namespace {

/// kv [rows, L + R]: the latent projection, not yet normalised nor rotated; it may be changed.
void WriteEntries(const Context& context, const MlaShape& s, const MlaWeights& w,
                  const BatchLayout& layout, KvCacheForm form, const Rotary& rotary,
                  LayerCache cache, Tensor kv) {
  const EntryArgs args = {.kv = kv,
                          .norm = w.kv_a_norm,
                          .rotary = rotary,
                          .slots = layout.slot_mapping().data(),
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

/// The requests as operations take them, with rows counted from first_row on; memory of the arena.
std::span<const AttentionSpan> Spans(const Context& context, std::span<const RequestRows> requests,
                                     int32_t first_row) {
  auto* spans = context.arena.Take<AttentionSpan>(static_cast<int64_t>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRows& r = requests[i];
    spans[i] = {r.first_row - first_row, r.query_length, r.context_length, r.block_table};
  }
  return {spans, requests.size()};
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
       .requests = Spans(context, plan.decode_runs(), first_row),
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
        context, shape,
        {.q = q, .out = out, .cache = cache, .requests = Spans(context, plan.per_head(), 0)});
  }
  if (!plan.decode_runs().empty()) {
    AbsorbedForm(context, shape, weights, plan, cache, q, out);
  }
  if (!plan.prompts().empty() || !plan.left_over().empty()) {
    context.ops.PromptAttention(context, shape, weights.kv_up,
                                {.q = q,
                                 .out = out,
                                 .cache = cache,
                                 .prompts = Spans(context, plan.prompts(), 0),
                                 .left_over = Spans(context, plan.left_over(), 0)});
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
