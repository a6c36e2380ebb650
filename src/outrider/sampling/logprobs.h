// Log-probabilities of emitted tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;  // natural logarithm of the model's probability, before any sampling field
};

/// The log-probabilities at one emitted position.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first; ties by token id
};

/// Log-softmax of a row of logits at `token` and at the `num_top` most likely tokens.
PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t token, int32_t num_top);

}  // namespace outrider
