// What a model's generation_config.json says of sampling, for requests that do not say.
#pragma once

#include "outrider/checkpoint/model_config.h"
#include "outrider/openai/request.h"

namespace outrider {

openai::SamplingDefaults ModelSamplingDefaults(const ModelConfig& config);

}  // namespace outrider
