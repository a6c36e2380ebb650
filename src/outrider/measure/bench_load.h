// The requests that `outrider bench` sends: random token ids, or prompts from a file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/engine_loader.h"
#include "outrider/engine/generation.h"

namespace outrider {

/// `count` prompts of `length` token ids below `vocab_size`, all different from the first token on
/// as far as the vocabulary allows, so that no prefix is shared. The same for the same arguments.
std::vector<std::vector<int32_t>> RandomPrompts(int32_t count, int32_t length, int32_t vocab_size,
                                                uint64_t seed);

/// One line of a prompts file.
struct PromptLine {
  std::string text;
  bool chat = false;  // `text` is a user's message for the chat template, not a plain prompt
};

/// Reads JSON lines, objects with "prompt" or "question" (a string; other keys are ignored, blank
/// lines too). Throws Error naming `where` and the line on anything else, and when there is no
/// line.
std::vector<PromptLine> ParsePromptLines(std::string_view where, std::string_view text);

/// ParsePromptLines of a file. Throws Error{kNotFound} when it cannot be read.
std::vector<PromptLine> ReadPromptsFile(const std::string& path);

/// The token ids of ReadPromptsFile's prompts, as requests to the engine would have them.
std::vector<std::vector<int32_t>> EncodePromptsFile(const LoadedEngine& loaded,
                                                    const std::string& path);

/// `count` requests over the prompts, from the first again when there are too few, each with its
/// own fixed seed.
std::vector<GenerationRequest> MakeRequests(const std::vector<std::vector<int32_t>>& prompts,
                                            int32_t count, const SamplingParams& sampling,
                                            uint64_t seed);

}  // namespace outrider
