#include "outrider/layers/kda_attention.h"

#include <array>
#include <boost/container/small_vector.hpp>
#include <utility>

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

/// What a layer's products give, side by side, so that a device may run those of the same rows as
/// one (HybridWeights declares their weights likewise).
struct Projected {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor decay;
  Tensor gates;
  Tensor write;
};

Projected TakeProjected(const Context& context, const KdaSpec& spec, int64_t rows) {
  const int64_t width = spec.width();
  const int64_t write = (spec.heads + 7) / 8 * 8;  // rows stay aligned
  // In a product's order: what has a product of its own stands behind.
  const Tensor all = context.Rows(rows, 5 * width + write);
  int64_t next = 0;
  const auto take = [&](int64_t columns) {
    return all.Columns(std::exchange(next, next + columns), columns);
  };
  Projected y = {.q = take(width), .k = take(width), .v = take(width)};
  if (spec.decay_rank == 0) y.decay = take(width);
  if (spec.gate_rank == 0) y.gates = take(width);
  y.write = take(write).Columns(0, spec.heads);
  if (spec.decay_rank > 0) y.decay = take(width);
  if (spec.gate_rank > 0) y.gates = take(width);
  return y;
}

void Project(const Context& context, const KdaSpec& spec, const KdaWeights& w, Tensor x,
             const Projected& y) {
  boost::container::small_vector<Product, 6> products = {
      {.x = x, .w = &w.q, .y = y.q}, {.x = x, .w = &w.k, .y = y.k}, {.x = x, .w = &w.v, .y = y.v}};
  if (spec.decay_rank == 0) products.push_back({.x = x, .w = &w.decay.up, .y = y.decay});
  if (spec.gate_rank == 0) products.push_back({.x = x, .w = &w.gate.up, .y = y.gates});
  products.push_back({.x = x, .w = &w.write, .y = y.write});
  context.ops.Multiply(context, products);
  if (spec.decay_rank == 0 && spec.gate_rank == 0) return;
  const Scratch::Frame frame(context.arena);
  const Tensor low = context.Activations(x.rows, spec.decay_rank + spec.gate_rank);
  const Tensor low_decay = low.Columns(0, spec.decay_rank);
  const Tensor low_gates = low.Columns(spec.decay_rank, spec.gate_rank);
  boost::container::small_vector<Product, 2> down;
  boost::container::small_vector<Product, 2> up;
  if (spec.decay_rank > 0) {
    down.push_back({.x = x, .w = &w.decay.down, .y = low_decay});
    up.push_back({.x = low_decay, .w = &w.decay.up, .y = y.decay});
  }
  if (spec.gate_rank > 0) {
    down.push_back({.x = x, .w = &w.gate.down, .y = low_gates});
    up.push_back({.x = low_gates, .w = &w.gate.up, .y = y.gates});
  }
  context.ops.Multiply(context, down);
  context.ops.Multiply(context, up);
}

}  // namespace

void KdaForward(const Context& context, const KdaSpec& spec, const KdaWeights& w,
                const KdaStep& step, Tensor x, Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const int64_t width = spec.width();
  const Projected projected = TakeProjected(context, spec, x.rows);
  Project(context, spec, w, x, projected);
  const Tensor out = context.Rows(x.rows, width);
  ops.delta()->DeltaAttention(context, ShapeOf(spec, step.first_head), step.inputs,
                              {.q = projected.q,
                               .k = projected.k,
                               .v = projected.v,
                               .q_taps = w.q_taps,
                               .k_taps = w.k_taps,
                               .v_taps = w.v_taps,
                               .decay = projected.decay,
                               .decay_log = w.decay_log,
                               .decay_bias = w.decay_bias,
                               .write = projected.write,
                               .state = step.state,
                               .out = out});
  const Tensor gated = context.Activations(x.rows, width);
  ops.delta()->NormGate(context, {.x = out,
                                  .heads = static_cast<int32_t>(spec.heads),
                                  .norm = w.norm,
                                  .norm_eps = step.norm_eps,
                                  .gates = projected.gates,
                                  .y = gated});
  ops.Multiply(context,
               std::array{Product{.x = gated, .w = &w.o, .y = residual, .accumulate = true}});
}

}  // namespace outrider
