// What `outrider explain` says of a network's shapes: layers, attention, experts, context, numbers
// of parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "outrider/checkpoint/model_config.h"

namespace outrider::cli {

/// A name and what is said of it.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// For people, in the order in which they are read.
Facts ShapeFacts(const ModelConfig& config);

/// One object, its keys named as in a config.json.
nlohmann::ordered_json ShapesJson(const ModelConfig& config);

}  // namespace outrider::cli
