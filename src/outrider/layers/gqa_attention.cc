#include "outrider/layers/gqa_attention.h"

#include <array>

namespace outrider {

namespace {

/// Keys, then values of the rows, as the cache keeps them: [rows, 2 * kv_heads * D].
struct GqaEntries {
  Tensor all;
  Tensor keys;
  Tensor values;
};

GqaEntries TakeEntries(const Context& context, const GqaShape& s, int64_t rows) {
  const int64_t width = int64_t{s.kv_heads} * s.head_dim;
  const Tensor all = context.Rows(rows, 2 * width);
  return {all, all.Columns(0, width), all.Columns(width, width)};
}

/// Normalises every head of x and rotates it.
void NormaliseAndRotate(const Context& context, int32_t heads, const float* norm, float eps,
                        const Rotary& rotary, Tensor x) {
  context.ops.NormHeads(context, x, heads, norm, eps);
  context.ops.Rotate(context, x, heads, 0, rotary);
}

void FinishEntries(const Context& context, const GqaShape& s, const GqaWeights& w,
                   const StepInputs& inputs, const Rotary& rotary, LayerCache cache,
                   const GqaEntries& entries) {
  NormaliseAndRotate(context, s.kv_heads, w.k_norm, s.norm_eps, rotary, entries.keys);
  context.ops.WriteEntries(context, inputs, entries.all, cache);
}

}  // namespace

void GqaForward(const Context& context, const GqaShape& s, const GqaWeights& w,
                const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x,
                Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const GqaEntries entries = TakeEntries(context, s, x.rows);
  const Tensor q = context.Rows(x.rows, int64_t{s.heads} * s.head_dim);
  const Tensor gates = context.Rows(x.rows, s.heads);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q, .y = q},
                                   Product{.x = x, .w = &w.k, .y = entries.keys},
                                   Product{.x = x, .w = &w.v, .y = entries.values},
                                   Product{.x = x, .w = &w.gate, .y = gates}});
  FinishEntries(context, s, w, inputs, rotary, cache, entries);
  NormaliseAndRotate(context, s.heads, w.q_norm, s.norm_eps, rotary, q);
  const Tensor out = context.Rows(x.rows, q.cols);
  ops.PerHeadAttention(context,
                       {.heads = s.heads,
                        .kv_heads = s.kv_heads,
                        .nope = s.head_dim,
                        .rope = 0,
                        .value = s.head_dim,
                        .window = s.window,
                        .softmax_scale = s.softmax_scale},
                       inputs, {.q = q, .out = out, .cache = cache});
  ops.GateHeads(context, gates, out);
  ops.Multiply(context,
               std::array{Product{.x = out, .w = &w.o, .y = residual, .accumulate = true}});
}

void WriteGqaEntries(const Context& context, const GqaShape& s, const GqaWeights& w,
                     const StepInputs& inputs, const Rotary& rotary, LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const GqaEntries entries = TakeEntries(context, s, x.rows);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.k, .y = entries.keys},
                                           Product{.x = x, .w = &w.v, .y = entries.values}});
  FinishEntries(context, s, w, inputs, rotary, cache, entries);
}

}  // namespace outrider
