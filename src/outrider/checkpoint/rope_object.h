// Where a config says how rotary angles are scaled.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/layer_spec.h"

namespace outrider {

struct RopeObject {
  std::string key;                         // as messages name it
  const nlohmann::json* object = nullptr;  // an object; null: the config has none
};

/// "rope_scaling", as models are published, or "rope_parameters", as transformers 5 writes it.
/// Refuses what is no object, and two that say different things.
RopeObject FindRope(ConfigReader& text);

/// Which scaling the object asks for, by "rope_type" or "type": `scaling` or "default", which is
/// none. Refuses others, and an object without a type that has a factor; "" then.
std::string RopeType(ConfigReader& rope, std::string_view scaling);

/// What every config with YaRN says of its ramp, without how cos and sin are magnified; none where
/// the object asks for no scaling. Refuses other scalings.
std::optional<YarnScaling> ReadYarnRamp(ConfigReader& rope);
/// Refuses a ramp that ends before it begins.
void CheckYarnRamp(ConfigReader& rope, const YarnScaling& yarn);

/// YaRN as DeepSeek's configs have it, or none where the object asks for no scaling. `problems` are
/// the reader's. Refuses other scalings.
std::optional<YarnScaling> ParseYarn(ConfigReader& rope, const std::vector<std::string>& problems);

/// How "llama3" stretches the angles. Refuses a ramp that ends before it begins.
Llama3Scaling ReadLlama3(ConfigReader& rope);

/// Refuses every key of the object that the reader was not asked for and that `method` ("YaRN",
/// "llama3") does not have.
void RefuseForeignRopeKeys(ConfigReader& rope, std::string_view method);

}  // namespace outrider
