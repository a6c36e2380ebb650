// Log-probabilities in the two shapes of the OpenAI API.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "outrider/engine/generation.h"
#include "outrider/server/prompt_encoder.h"

namespace outrider::openai {

/// Chat: {"content":[{"token","logprob","bytes","top_logprobs":[...]}]}.
std::string ChatLogprobsJson(std::span<const PositionLogprobs> positions,
                             const PromptEncoder& encoder);

/// Completions: four parallel arrays. The chosen token is among its position's top_logprobs; tokens
/// of the same spelling share one entry, the most likely's. `text_offset` counts characters and is
/// moved past these tokens.
std::string CompletionLogprobsJson(std::span<const PositionLogprobs> positions,
                                   const PromptEncoder& encoder, int64_t* text_offset);

}  // namespace outrider::openai
