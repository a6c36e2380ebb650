// Log-probabilities in the shapes of each endpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "outrider/engine/generation.h"
#include "outrider/server/prompt_encoder.h"

namespace outrider::openai {

/// Chat: {"content":[{"token","logprob","bytes","top_logprobs":[...]}]}.
std::string ChatLogprobsJson(std::span<const PositionLogprobs> positions,
                             const PromptEncoder& encoder);

/// /generate: {"content":[{"token_id","logprob","top_logprobs":[{"token_id","logprob"}]}]}.
std::string TokenIdLogprobsJson(std::span<const PositionLogprobs> positions);

/// Completions: four parallel arrays. The chosen token is among its position's top_logprobs; tokens
/// of the same spelling share one entry, the most likely's. `text_offset` counts characters and is
/// moved past these tokens. `first_token`, the first of an echoed prompt, comes before them and has
/// null for logprobs.
std::string CompletionLogprobsJson(std::optional<int32_t> first_token,
                                   std::span<const PositionLogprobs> positions,
                                   const PromptEncoder& encoder, int64_t* text_offset);

/// vLLM's prompt_logprobs: null for the prompt's first token, then per position an object
/// {"TOKEN_ID":{"logprob","rank","decoded_token"}} of its token and the most likely ones.
std::string PromptLogprobsJson(std::span<const PositionLogprobs> positions,
                               const PromptEncoder& encoder);

}  // namespace outrider::openai
