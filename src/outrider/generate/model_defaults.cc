#include "outrider/generate/model_defaults.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "outrider/base/bounded_json.h"
#include "outrider/base/error.h"
#include "outrider/base/file.h"

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

std::vector<std::string> ReadExampleQuestions(const std::filesystem::path& model) {
  constexpr uint64_t kMostBytes = 64 << 10;
  constexpr size_t kMostQuestions = 8;
  const std::filesystem::path path = model / "example_questions.json";
  if (!std::filesystem::exists(path)) return {};
  const auto refuse = [&](std::string_view why) {
    throw InvalidArgument("{} {}", path.string(), why);
  };
  nlohmann::json list;
  try {
    list = ParseBoundedJson(ReadTextFile(path, kMostBytes), {.max_depth = 1, .max_values = 64});
  } catch (const JsonFault& fault) {
    refuse(fault.what());
  }
  std::vector<std::string> questions;
  if (!list.is_array() || list.empty() || list.size() > kMostQuestions) {
    refuse("must be a list of 1 to 8 questions");
  }
  for (const nlohmann::json& question : list) {
    if (!question.is_string()) refuse("must hold strings only");
    questions.push_back(question.get<std::string>());
  }
  return questions;
}

}  // namespace outrider
