// The largest passes of a network once, before its cache is made: so that the work space between
// operations is in the device's memory when the cache takes what is left, and libraries are loaded
// when the first request comes. Inputs, results and recorded passes of steps come with these.
#pragma once

#include <vector>

#include "outrider/networks/draft_model.h"
#include "outrider/networks/network.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// Runs prompts of a whole step, the last rows of prompts of the greatest length, and a row, with
/// drafts, of every request. All positions share one page, whose contents mean nothing.
void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

/// The same of a draft model with weights of its own: what it reads of the target's rows of a whole
/// step, their entries, and a row of every request that comes out.
void WarmUp(DraftModel& draft, int64_t target_width, const SchedulerConfig& scheduler,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

}  // namespace outrider
