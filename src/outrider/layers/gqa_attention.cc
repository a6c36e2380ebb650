#include "outrider/layers/gqa_attention.h"

#include <array>

#include "outrider/ops/per_head.h"

namespace outrider {

namespace {

PerHeadShape PerHead(const GqaShape& s) {
  return {.heads = s.heads,
          .kv_heads = s.kv_heads,
          .nope = s.head_dim,
          .rope = 0,
          .value = s.head_dim,
          .window = s.window,
          .softmax_scale = s.softmax_scale};
}

}  // namespace

void GqaForward(const Context& context, const GqaShape& s, const GqaWeights& w,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const int64_t query = int64_t{s.heads} * s.head_dim;
  const int64_t entry = int64_t{s.kv_heads} * s.head_dim;
  // What the first products give stands side by side, so that a device may run them as one.
  const int64_t num_gates = s.gates_heads ? s.heads : 0;
  const Tensor all = context.Activations(x.rows, query + 2 * entry + num_gates);
  const Tensor q = all.Columns(0, query);
  const Tensor k = all.Columns(query, entry);
  const Tensor v = all.Columns(query + entry, entry);
  const Tensor gates = all.Columns(query + 2 * entry, num_gates);
  const std::array products = {
      Product{.x = x, .w = &w.q, .y = q}, Product{.x = x, .w = &w.k, .y = k},
      Product{.x = x, .w = &w.v, .y = v}, Product{.x = x, .w = &w.gate, .y = gates}};
  ops.Multiply(context, std::span(products).first(s.gates_heads ? 4 : 3));
  ops.per_head()->WriteHeadEntries(context, PerHead(s), inputs,
                                   {.q = q,
                                    .k = k,
                                    .v = v,
                                    .q_norm = w.q_norm,
                                    .k_norm = w.k_norm,
                                    .norm_eps = s.norm_eps,
                                    .rotary = rotary,
                                    .cache = cache});
  const Tensor out = context.Activations(x.rows, query);
  ops.per_head()->PerHeadAttention(context, PerHead(s), inputs,
                                   {.q = q, .out = out, .cache = cache, .gates = gates});
  ops.Multiply(context,
               std::array{Product{.x = out, .w = &w.o, .y = residual, .accumulate = true}});
}

void WriteGqaEntries(const Context& context, const GqaShape& s, const GqaWeights& w,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const int64_t entry = int64_t{s.kv_heads} * s.head_dim;
  const Tensor all = context.Activations(x.rows, 2 * entry);
  const Tensor k = all.Columns(0, entry);
  const Tensor v = all.Columns(entry, entry);
  context.ops.Multiply(
      context, std::array{Product{.x = x, .w = &w.k, .y = k}, Product{.x = x, .w = &w.v, .y = v}});
  context.ops.per_head()->WriteHeadEntries(context, PerHead(s), inputs,
                                           {.k = k,
                                            .v = v,
                                            .k_norm = w.k_norm,
                                            .norm_eps = s.norm_eps,
                                            .rotary = rotary,
                                            .cache = cache});
}

}  // namespace outrider
