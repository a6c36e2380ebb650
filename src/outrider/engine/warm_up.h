// The largest passes of a network once, before its cache is made: so that the work space between
// operations is in the device's memory when the cache takes what is left, and libraries are loaded
// when the first request comes. Memory for inputs, results and recorded passes comes with the first
// steps.
#pragma once

#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/draft_model.h"
#include "outrider/networks/network.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// Begins what the first prompts of a network would wait for (Ops::PreparePrompts), so that it goes
/// on while the weights are loaded.
void PreparePrompts(const Ops& ops, const ModelConfig& config);

/// Runs prompts of a whole step, among them the last rows of one of the greatest length, and a row,
/// with drafts, of every request, one of which has the greatest length, through the target and,
/// with `modules`, an MTP module; then the network has as much work space as these took. All
/// positions share one page, whose contents mean nothing. Throws OutOfMemory where the work space
/// does not fit.
void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts, bool modules,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

/// Warms up a draft model that is not the network's modules: what it reads of the target's rows of
/// a whole step, their entries, and so many rows of every request that come out.
void WarmUp(DraftModel& draft, int64_t target_width, int32_t rows, const SchedulerConfig& scheduler,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

}  // namespace outrider
