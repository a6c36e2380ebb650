#include "outrider/layers/kda_attention.h"

#include <array>

namespace outrider {

namespace {

DeltaShape ShapeOf(const KdaSpec& spec, int32_t first_head) {
  return {.heads = static_cast<int32_t>(spec.heads),
          .head_dim = static_cast<int32_t>(spec.head_dim),
          .conv = static_cast<int32_t>(spec.conv),
          .bounded = spec.decay_bound.has_value(),
          .decay_bound = static_cast<float>(spec.decay_bound.value_or(0)),
          .first_head = first_head};
}

/// y = up(down(x)), or up(x).
void Project(const Context& context, const KdaProjection& w, int64_t rank, Tensor x, Tensor y) {
  const Scratch::Frame frame(context.arena);
  if (rank > 0) {
    const Tensor low = context.Activations(x.rows, rank);
    context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.down, .y = low}});
    x = low;
  }
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.up, .y = y}});
}

}  // namespace

void KdaForward(const Context& context, const KdaSpec& spec, const KdaWeights& w,
                const KdaStep& step, Tensor x, Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const int64_t width = spec.width();
  const Tensor q = context.Rows(x.rows, width);
  const Tensor k = context.Rows(x.rows, width);
  const Tensor v = context.Rows(x.rows, width);
  const Tensor write = context.Rows(x.rows, spec.heads);
  ops.Multiply(
      context,
      std::array{Product{.x = x, .w = &w.q, .y = q}, Product{.x = x, .w = &w.k, .y = k},
                 Product{.x = x, .w = &w.v, .y = v}, Product{.x = x, .w = &w.write, .y = write}});
  const Tensor decay = context.Rows(x.rows, width);
  Project(context, w.decay, spec.decay_rank, x, decay);
  const Tensor out = context.Activations(x.rows, width);
  ops.delta()->DeltaAttention(context, ShapeOf(spec, step.first_head), step.inputs,
                              {.q = q,
                               .k = k,
                               .v = v,
                               .q_taps = w.q_taps,
                               .k_taps = w.k_taps,
                               .v_taps = w.v_taps,
                               .decay = decay,
                               .decay_log = w.decay_log,
                               .decay_bias = w.decay_bias,
                               .write = write,
                               .state = step.state,
                               .out = out});
  const Tensor gates = decay;  // no longer needed
  Project(context, w.gate, spec.gate_rank, x, gates);
  ops.delta()->NormGate(context, {.x = out,
                                  .heads = static_cast<int32_t>(spec.heads),
                                  .norm = w.norm,
                                  .norm_eps = step.norm_eps,
                                  .gates = gates});
  ops.Multiply(context,
               std::array{Product{.x = out, .w = &w.o, .y = residual, .accumulate = true}});
}

}  // namespace outrider
