// Log-probabilities in the shapes of each endpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "outrider/engine/generation.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// Chat: {"content":[{"token","logprob","bytes","top_logprobs":[...]}]}.
std::string ChatLogprobsJson(std::span<const PositionLogprobs> positions,
                             const PromptEncoder& encoder);

/// /generate: {"content":[{"token_id","logprob","top_logprobs":[{"token_id","logprob"}]}]}.
std::string TokenIdLogprobsJson(std::span<const PositionLogprobs> positions);

/// /inference/v1/generate: as in chats, with "token_id:N" for the token's text.
std::string NumberedLogprobsJson(std::span<const PositionLogprobs> positions);

/// Appends a log-probability as JSON has it.
void AppendLogprob(float logprob, std::string* out);

/// Completions: four parallel arrays. The chosen token is among its position's top_logprobs; tokens
/// of the same spelling share one entry, the most likely's. `first_token`, the first of an echoed
/// prompt, comes before the others of `prompt` and has null for logprobs. `characters` says how
/// many characters of the answer's text each of these tokens stands for; `text_offset`, which
/// counts them, is moved past them.
std::string CompletionLogprobsJson(std::optional<int32_t> first_token,
                                   std::span<const PositionLogprobs> prompt,
                                   std::span<const PositionLogprobs> answer,
                                   std::span<const int32_t> characters,
                                   const PromptEncoder& encoder, int64_t* text_offset);

/// The characters that begin in a token: 0 for one that goes on with a character of the token
/// before, and for special ones that the text leaves out.
int32_t TokenCharacters(int32_t token_id, const PromptEncoder& encoder, bool skip_special);

/// vLLM's prompt_logprobs: null for the prompt's first token, then per position an object
/// {"TOKEN_ID":{"logprob","rank","decoded_token"}} of its token and the most likely ones.
std::string PromptLogprobsJson(std::span<const PositionLogprobs> positions,
                               const PromptEncoder& encoder);

}  // namespace outrider::openai
