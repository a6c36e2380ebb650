// Runs the largest passes of a network once, before its cache is made. The work space between
// operations is then in the device's memory when the cache takes what is left, and libraries are
// loaded when the first request comes. Memory for inputs, results and recorded passes comes with
// the first steps.
#pragma once

#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/networks/draft_model.h"
#include "outrider/networks/network.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// Begins what the first prompts of a network would wait for (MlaOps::PreparePrompts). It goes on
/// while the weights are loaded.
void PreparePrompts(const Ops& ops, const ModelConfig& config);

/// Runs two steps through the target and, with `modules`, an MTP module. The first has as many
/// prompt rows as a step may have, among them the last rows of the longest prompts. The second has
/// a row and its drafts of every request, one of the greatest length. The network's work space is
/// then as large as these need. All positions share one page, whose contents mean nothing. Throws
/// OutOfMemory where the work space does not fit.
void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts, bool modules,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

/// Warms up a draft model that is not one of the network's modules: it reads the target's rows of a
/// whole step, writes their entries, and gives `rows` output rows of every request. Where prompt
/// rows take a path of their own, it then gives the last rows of the longest prompts.
void WarmUp(DraftModel& draft, int64_t target_width, int32_t rows, const SchedulerConfig& scheduler,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers);

}  // namespace outrider
