// Log-probabilities of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

/// What log-probabilities of emitted tokens tell of: the model, or what tokens were drawn from.
enum class LogprobsMode : uint8_t {
  kRaw,        // before any sampling field
  kProcessed,  // after all: processors, temperature, min-p, top-k, top-p (greedy: processors only)
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;  // natural logarithm of the probability
};

/// The log-probabilities at one position.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first; ties by token id
  int32_t rank = 1;               // of the chosen token in that order, from 1
};

/// The log-probabilities of some rows as a device computed them.
struct LogprobRows {
  const float* logprobs = nullptr;      // [rows] of the chosen tokens
  const int32_t* ranks = nullptr;       // [rows] of the chosen tokens, from 1
  const int32_t* top_tokens = nullptr;  // [rows, columns]: most likely first
  const float* top_logprobs = nullptr;  // [rows, columns]
  size_t columns = 0;

  LogprobRows From(size_t row) const {
    return {logprobs + row, ranks + row, top_tokens + row * columns, top_logprobs + row * columns,
            columns};
  }
  /// num_top: at most `columns`.
  PositionLogprobs At(size_t row, int32_t token, size_t num_top) const;
};

/// Log-softmax of a row of logits at `token` and at the `num_top` most likely tokens. Logits of
/// -infinity are allowed, though not in all places.
PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t token, int32_t num_top);

}  // namespace outrider
