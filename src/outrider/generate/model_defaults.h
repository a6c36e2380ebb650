// What a model's files say for users who do not: sampling of generation_config.json, and questions
// that suit it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/openai/request.h"

namespace outrider {

openai::SamplingDefaults ModelSamplingDefaults(const ModelConfig& config);

/// The strings of `model`/example_questions.json, which the web page offers; none without such a
/// file. Throws Error where it is no JSON list of 1 to 8 strings.
std::vector<std::string> ReadExampleQuestions(const std::filesystem::path& model);

}  // namespace outrider
