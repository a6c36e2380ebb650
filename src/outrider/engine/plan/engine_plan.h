// Decides everything about an engine before weights are read, except the sizes of its memory
// (cache_plan.h). The plan is a function of options, checkpoints' configs and facts of the machine.
// Its results are final.
#pragma once

#include <cstdint>
#include <optional>

#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/cache_layout.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/draft_plan.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/engine/plan/form_plan.h"
#include "outrider/engine/plan/number_plan.h"
#include "outrider/engine/plan/rank_plan.h"

namespace outrider {

struct EnginePlan {
  DeviceKind device = DeviceKind::kCpu;  // not kAuto
  int32_t ranks = 1;
  int32_t cache_ranks = 1;  // of them, those that have the cache of their own requests: all or 1
  int32_t max_num_batched_tokens = 0;  // rows of a step; decode rows may exceed it
  NumberPlan numbers;
  FormPlan form;
  DraftPlan drafts;
  CacheLayout cache;
  std::optional<RoutedShape> routed = {};  // of experts that requests may ask for; unset: of none
  ComputeThreads threads;                  // of all ranks together

  /// Rows that a request may have in a step, and positions that its drafter writes behind them.
  int32_t MostStepTokens() const;
  /// Likewise, of a request that generates.
  int32_t MostDecodeTokens() const;
};

/// The options are as CheckOptions wants them. Throws Error for what the model or the device does
/// not take of them.
EnginePlan PlanEngine(const EngineOptions& options, const ModelFacts& model,
                      const DeviceFacts& device, Decisions& decisions);

}  // namespace outrider
