// The checkpoints that an engine's weights come from, with their headers read.
#pragma once

#include <memory>

#include "outrider/checkpoint/weight_source.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/engine_plan.h"
#include "outrider/engine/plan/memory_report.h"

namespace outrider {

struct Checkpoints {
  ModelFacts facts;
  std::unique_ptr<WeightSource> model;
  std::unique_ptr<WeightSource> drafter;  // null without a checkpoint of its own
};

/// The options are as CheckOptions wants them. Throws Error on anything wrong with the configs and
/// headers.
Checkpoints OpenCheckpoints(const EngineOptions& options);

/// Sizes of the weights of every rank in this form, from headers. Throws Error that lists every
/// tensor that is missing or wrong.
MeasuredWeights MeasureWeights(const Ops& ops, const Checkpoints& checkpoints,
                               const EnginePlan& plan, WeightForm form);

}  // namespace outrider
