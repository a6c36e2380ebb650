// Loading an engine with progress on standard error.
#pragma once

#include <string>

#include "outrider/cli/load_progress.h"
#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

/// LoadEngine, its progress printed to standard error in `style`, and what steps were measured to
/// take logged, a line per batch size.
LoadedEngine LoadWithProgress(const EngineOptions& options, ProgressStyle style);

/// "step times, 16 requests: 2.05 ms without drafts, x 1.31 with 1, x 1.62 with 2".
std::string StepTimesLine(const StepTimes::Batch& batch);

}  // namespace outrider::cli
