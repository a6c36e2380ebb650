#include "outrider/generate/model_defaults.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace outrider {

openai::SamplingDefaults ModelSamplingDefaults(const ModelConfig& config) {
  const auto number = [](const std::optional<double>& value) {
    return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
  };
  openai::SamplingDefaults defaults;
  defaults.temperature = number(config.default_temperature);
  defaults.top_p = number(config.default_top_p);
  // The likeliest token alone, as transformers has it.
  if (defaults.top_p) defaults.top_p = std::max(*defaults.top_p, std::numeric_limits<float>::min());
  defaults.min_p = number(config.default_min_p);
  // "All tokens" is -1 or 0.
  if (config.default_top_k) {
    defaults.top_k = static_cast<int32_t>(std::max<int64_t>(*config.default_top_k, 0));
  }
  defaults.repetition_penalty = number(config.default_repetition_penalty);
  return defaults;
}

}  // namespace outrider
