// cuDNN's plans of attention to prompts, by shape. One takes seconds to make, so that making begins
// when weights are loaded, beside it.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <tuple>

#include "outrider/kernels/cuda/prompt/prompt_attention.h"
#include "outrider/ops/mla.h"

namespace outrider::cuda {

/// One thread at a time.
class PromptPlans {
 public:
  /// Plans for this device. head_ranks: ranks that share a model's heads.
  PromptPlans(int device, int32_t head_ranks) : device_(device), head_ranks_(head_ranks) {}

  /// Begins to make one.
  void Prepare(const MlaShape& shape, int64_t query_stride) { PlanOf(shape, query_stride); }
  /// Waits for all that were begun. Throws what making one threw.
  void Wait() {
    for (auto& [key, plan] : plans_) plan.Wait();
  }
  /// Waits until it is there.
  PromptAttention& Of(const MlaShape& shape, int64_t query_stride) {
    return PlanOf(shape, query_stride).Wait();
  }

 private:
  struct Plan {
    std::future<std::unique_ptr<PromptAttention>> coming;
    std::unique_ptr<PromptAttention> made;

    PromptAttention& Wait() {
      if (!made) made = coming.get();
      return *made;
    }
  };

  Plan& PlanOf(const MlaShape& shape, int64_t query_stride);

  int device_;
  int32_t head_ranks_;
  // Heads, P + R, V, scale, stride of queries.
  std::map<std::tuple<int32_t, int32_t, int32_t, float, int64_t>, Plan> plans_;
};

}  // namespace outrider::cuda
