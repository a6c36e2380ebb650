// Ranks that share a model, and the threads that each of them computes with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/parallel/share.h"

namespace outrider {

/// Throws Error if the options' ranks cannot share the model, or if the device does not run it on
/// several.
void PlanRanks(const EngineOptions& options, const ModelFacts& model, DeviceKind device,
               Decisions& decisions);

/// Threads of a pool, the caller's included.
struct ComputeThreads {
  int count = 1;
  std::vector<int> processors;  // one for each; empty: they run where the system puts them
};

/// Plans the threads of all ranks together. processors: those that this process may use. Threads
/// are bound to them if there is one for each; else some must be left for other programs, or
/// shared.
ComputeThreads PlanThreads(const EngineOptions& options, const std::vector<int>& processors);

/// The part of one rank: at least one thread.
ComputeThreads ThreadsOf(const ComputeThreads& all, const RankPlace& place);

}  // namespace outrider
