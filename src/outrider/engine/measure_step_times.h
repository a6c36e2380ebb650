// Measures how long an engine's steps take with each number of drafts, before it serves: the table
// that DraftLengthPolicy chooses by.
//
// Made-up requests run through the engine itself, 1, 4, 16 and 64 at a time, with 0 .. k drafts
// each. Where drafts are looked up, requests that ask for none tell what looking costs, and for the
// others lookups find something whatever the text is (GenerationRequest::always_drafts). The
// measurement ends after about three seconds, or when 64 requests were measured. Nobody
// reads what it leaves in the cache and in the drafter: the block pool and the request slots start
// anew, and a request writes a block or slot before it reads it.
#pragma once

#include <functional>

#include "outrider/draft/draft_length_policy.h"
#include "outrider/engine/engine_core.h"

namespace outrider {

/// Called when a batch size has been measured.
using StepTimesProgress = std::function<void(const StepTimes::Batch&)>;

/// Measures the steps of `parts`, which must have a drafter and no draft_length_policy. The parts
/// come back as they were. looks_up: the drafter is prompt lookup, which has nothing to do for
/// prompts: there are looking_seconds and no prompt_row_seconds. The result has no batches if there
/// was no time or no room for one request.
StepTimes MeasureStepTimes(EngineParts& parts, bool looks_up, const StepTimesProgress& progress);

}  // namespace outrider
