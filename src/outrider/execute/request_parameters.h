// What an executor must know of a request and what does not change while the request runs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "outrider/grammar/request_grammar.h"
#include "outrider/sampling/sampling_params.h"

namespace outrider {

struct RequestParameters {
  SamplingParams sampling;
  GrammarConstraint grammar;  // without a grammar: any text
  uint64_t seed = 0;
  int32_t prompt_length = 0;
  int32_t max_total_tokens = 0;  // prompt and output; the request ends there
  /// Most drafts per step; unset: as many as the step asks for.
  std::optional<int32_t> num_speculative_tokens;
  bool always_drafts = false;  // also where a lookup finds nothing
  /// Results tell the experts of tokens from this one on; unset: they tell none.
  std::optional<int32_t> experts_from;
};

enum class TokenEnd : uint8_t { kGoesOn, kEos, kStopToken };

/// Whether an output token ends its request.
TokenEnd EndBy(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
               int32_t token);

}  // namespace outrider
