// Which numbers an engine computes with and keeps.
#pragma once

#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/kv/network_cache.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct NumberPlan {
  DType dtype = DType::kBF16;     // kF32 or kBF16
  DType kv_dtype = DType::kBF16;  // these, or kF8E4M3
  WeightForm weights;             // of one rank

  Fp8Form cache_form = Fp8Form::kPublished;  // kF8E4M3

  CacheNumbers cache() const { return {kv_dtype, dtype, cache_form}; }
};

/// Throws Error for a cache of 8 bits that the model's attention does not have on the device.
NumberPlan PlanNumbers(const EngineOptions& options, const ModelConfig& config,
                       const DeviceFacts& device, Decisions& decisions);

}  // namespace outrider
