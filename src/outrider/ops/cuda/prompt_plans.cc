#include "outrider/ops/cuda/prompt_plans.h"

#include <cuda_runtime_api.h>

#include "outrider/kernels/cuda/host/device_memory.h"

namespace outrider::cuda {

PromptPlans::Plan& PromptPlans::PlanOf(const MlaShape& s, int64_t query_stride) {
  Plan& plan = plans_[{s.heads, s.nope + s.rope, s.value, s.softmax_scale, query_stride}];
  if (plan.made || plan.coming.valid()) return plan;
  // Values lie beside the keys' own parts, as the product leaves them.
  const PromptAttentionShape shape = {.heads = s.heads,
                                      .model_heads = s.heads * head_ranks_,
                                      .key_width = s.nope + s.rope,
                                      .value_width = s.value,
                                      .q_row_stride = query_stride,
                                      .v_row_stride = int64_t{s.heads} * (s.nope + s.value),
                                      .v_head_stride = s.nope + s.value,
                                      .scale = s.softmax_scale};
  plan.coming = std::async(std::launch::async, [device = device_, shape] {
    CheckCuda(cudaSetDevice(device), "the current device");
    return std::make_unique<PromptAttention>(shape);
  });
  return plan;
}

}  // namespace outrider::cuda
