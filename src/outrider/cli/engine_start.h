// Loading an engine for a command or the Python package: what is worth saying is logged.
#pragma once

#include <string>

#include "outrider/cli/load_progress.h"
#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

/// LoadEngine; what steps were measured to take is logged, a line per batch size, and warnings are.
LoadedEngine LoadAndLog(const EngineOptions& options, const LoadProgress& progress);

/// Starts an engine with its progress printed to standard error in `style`.
LoadedEngine LoadWithProgress(const EngineOptions& options, ProgressStyle style);

/// "step times, 16 requests: 2.05 ms without drafts, x 1.31 with 1, x 1.62 with 2".
std::string StepTimesLine(const StepTimes::Batch& batch);

}  // namespace outrider::cli
