#include "outrider/layers/mlp.h"

#include <algorithm>
#include <array>

#include "outrider/ops/moe.h"

namespace outrider {

namespace {

void DenseTile(const Context& context, const DenseMlpSpec& spec, const MlpWeights& w, Tensor h,
               Tensor x, const NormOut& norm) {
  const Scratch::Frame frame(context.arena);
  const Tensor inner = context.Activations(h.rows, w.gate_up.rows / 2);
  context.ops.Multiply(context, std::array{Product{.x = h,
                                                   .w = &w.gate_up,
                                                   .y = inner,
                                                   .silu_mul = true,
                                                   .limit = static_cast<float>(spec.limit)}});
  context.ops.Multiply(context,
                       std::array{Product{.x = inner, .w = &w.down, .y = x, .accumulate = true}});
  if (norm.weight != nullptr) context.ops.Norm(context, x, norm.weight, norm.eps, norm.out);
}

/// h: the rows of the step from first_row on.
ExpertSum OutputsOf(const Context& context, const MoeSpec& spec, const MoeWeights& w,
                    const StepInputs& inputs, int32_t first_row, Tensor h, ChosenExperts chosen) {
  const Ops& ops = context.ops;
  const Tensor scores = context.Rows(h.rows, spec.router.experts);
  ops.Multiply(context, std::array{Product{.x = h, .w = &w.router, .y = scores, .float32 = true}});
  const Routing& routing =
      spec.router.method == RouterMethod::kTokenTable
          ? ops.token_router()->RouteByToken(context, spec.router, inputs, first_row, w.experts,
                                             scores, w.token_experts)
          : ops.moe()->Route(context, spec.router, inputs, first_row, w.experts, scores,
                             w.router_bias);
  if (chosen.ids != nullptr) ops.chosen_experts()->ReadChosen(routing, chosen);
  const ExpertRows inner = ops.moe()->ExpertGateUp(context, w.experts,
                                                   {.routed = static_cast<float>(spec.limit),
                                                    .shared = static_cast<float>(spec.shared_limit),
                                                    .limits_gate = spec.limits_gate},
                                                   routing, h);
  return {.weights = &w.experts,
          .routing = &routing,
          .outputs = ops.moe()->ExpertDown(context, w.experts, routing, inner)};
}

/// run(first, count) of every tile of rows: what is inside an MLP is wide.
template <typename Run>
void ForTiles(const Context& context, int64_t rows, Run run) {
  const int64_t tile = context.ops.mlp_tile();
  for (int64_t first = 0; first < rows; first += tile) run(first, std::min(tile, rows - first));
}

}  // namespace

void DenseMlp(const Context& context, const DenseMlpSpec& spec, const MlpWeights& weights, Tensor h,
              Tensor x, const NormOut& norm) {
  ForTiles(context, h.rows, [&](int64_t first, int64_t count) {
    DenseTile(context, spec, weights, h.Rows(first, count), x.Rows(first, count),
              norm.Rows(first, count));
  });
}

void MixtureOfExperts(const Context& context, const MoeSpec& spec, const MoeWeights& weights,
                      const StepInputs& inputs, Tensor h, Tensor x, const NormOut& norm,
                      ChosenExperts chosen) {
  ForTiles(context, h.rows, [&](int64_t first, int64_t count) {
    const Scratch::Frame frame(context.arena);
    const ExpertSum sum = OutputsOf(context, spec, weights, inputs, static_cast<int32_t>(first),
                                    h.Rows(first, count), chosen.From(first));
    context.ops.moe()->CombineExperts(context, *sum.weights, *sum.routing, sum.outputs,
                                      x.Rows(first, count), norm.Rows(first, count));
  });
}

ExpertSum ExpertOutputs(const Context& context, const MoeSpec& spec, const MoeWeights& weights,
                        const StepInputs& inputs, Tensor h, ChosenExperts chosen) {
  OUTRIDER_CHECK(h.rows <= context.ops.mlp_tile());
  return OutputsOf(context, spec, weights, inputs, 0, h, chosen);
}

}  // namespace outrider
