// The value of --logit-bias.
#pragma once

#include <string_view>
#include <vector>

#include "outrider/sampling/sampling_params.h"

namespace outrider {

/// An object {"TOKEN_ID": number, ...}. `where` opens every error message; the ranges are checked
/// with the request (SamplingParams::Validate).
std::vector<TokenBias> ParseLogitBias(std::string_view where, std::string_view text);

}  // namespace outrider
