#include "outrider/layers/mlp.h"

#include <array>

namespace outrider {

void DenseMlp(const Context& context, const DenseMlpSpec& spec, const MlpWeights& w, Tensor h,
              Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor inner = context.Rows(h.rows, w.down.cols);
  context.ops.Multiply(context, std::array{Product{.x = h,
                                                   .w = &w.gate_up,
                                                   .y = inner,
                                                   .silu_mul = true,
                                                   .limit = static_cast<float>(spec.limit)}});
  context.ops.Multiply(context,
                       std::array{Product{.x = inner, .w = &w.down, .y = x, .accumulate = true}});
}

void MixtureOfExperts(const Context& context, const MoeSpec& spec, const MoeWeights& w,
                      const StepInputs& inputs, int32_t first_row, Tensor h, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const Tensor scores = context.Rows(h.rows, spec.router.experts);
  ops.Multiply(context, std::array{Product{.x = h, .w = &w.router, .y = scores, .float32 = true}});
  const Routing& routing =
      spec.router.method == RouterMethod::kTokenTable
          ? ops.RouteByToken(context, spec.router, inputs, first_row, scores, w.token_experts)
          : ops.Route(context, spec.router, w.experts, scores, w.router_bias);
  const ExpertRows inner = ops.ExpertGateUp(context, w.experts,
                                            {.routed = static_cast<float>(spec.limit),
                                             .shared = static_cast<float>(spec.shared_limit),
                                             .limits_gate = spec.limits_gate},
                                            routing, h);
  const ExpertRows outputs = ops.ExpertDown(context, w.experts, routing, inner);
  ops.CombineExperts(context, w.experts, routing, outputs, x);
}

}  // namespace outrider
