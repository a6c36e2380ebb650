// Which options and plans the GPU takes, as rules. A processor takes everything.
#pragma once

#include <span>
#include <string>

#include "outrider/engine/plan/engine_plan.h"
#include "outrider/ops/support.h"

namespace outrider {

/// What rules about options read.
struct AskedOptions {
  const EngineOptions& options;
  const ModelConfig& config;
  const EnginePlan& plan;
};

/// What the GPU takes of options.
std::span<const Rule<AskedOptions>> GpuOptionRules();

/// The table of docs/gpu.md: everything that networks and options may ask of the GPU.
std::string GpuSupportTable();

/// Throws Error for options and networks that the plan's device does not run, with what it does
/// run.
void CheckRunsOnDevice(const EngineOptions& options, const ModelFacts& model,
                       const EnginePlan& plan);

/// What the GPU computes in a way of its own; on a processor whether a GPU would run the network.
void DescribeGpu(const ModelFacts& model, const EnginePlan& plan, Decisions& decisions);

}  // namespace outrider
