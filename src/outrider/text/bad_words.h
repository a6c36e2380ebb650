// Words that an answer must not hold, as the token sequences that spell them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outrider/text/prompt_encoder.h"

namespace outrider {

/// Each word, its leading blanks removed, as it is spelt at the beginning of a text and, where that
/// is another sequence of the same length, after a space (vLLM's rule). Other spellings of the same
/// characters are not found. Throws Error for a word without tokens.
std::vector<std::vector<int32_t>> EncodeBadWords(std::span<const std::string> words,
                                                 const PromptEncoder& encoder);

}  // namespace outrider
