// What `outrider explain` prints: shapes, parameters, memory and decisions.
#pragma once

#include <string>

#include "outrider/engine/engine_loader.h"

namespace outrider::cli {

/// For people. `model` is the path as given.
std::string ExplainText(const std::string& model, const LoadedEngine& explained);

/// The report as one JSON object, ending in a newline.
std::string ExplainJson(const std::string& model, const LoadedEngine& explained);

}  // namespace outrider::cli
