#include "outrider/execute/request_parameters.h"

#include <algorithm>

namespace outrider {

TokenEnd EndBy(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
               int32_t token) {
  const auto& stops = sampling.stop_token_ids;
  if (!sampling.ignore_eos && std::ranges::find(eos_token_ids, token) != eos_token_ids.end()) {
    return TokenEnd::kEos;
  }
  return std::ranges::find(stops, token) != stops.end() ? TokenEnd::kStopToken : TokenEnd::kGoesOn;
}

}  // namespace outrider
