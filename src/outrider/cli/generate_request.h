// The sampling values of a command line, laid over the model's, for requests of one engine.
#pragma once

#include "outrider/openai/request.h"
#include "outrider/options/settings.h"

namespace outrider::cli {

/// A request with every value of `settings` but its prompt.
openai::TokenRequest SampledRequest(const GenerateSettings& settings,
                                    const openai::SamplingDefaults& defaults);

}  // namespace outrider::cli
