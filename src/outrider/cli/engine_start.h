// Loading an engine with progress on standard error, and encoding prompts for it.
#pragma once

#include <string>
#include <vector>

#include "outrider/cli/load_progress.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/server/openai/request.h"
#include "outrider/server/text_prompt_encoder.h"

namespace outrider::cli {

/// LoadEngine, its progress printed to standard error in `style`, and what steps were measured to
/// take logged, a line per batch size.
LoadedEngine LoadWithProgress(const EngineOptions& options, ProgressStyle style);

/// "step times, 16 requests: 2.05 ms without drafts, x 1.31 with 1, x 1.62 with 2".
std::string StepTimesLine(const StepTimes::Batch& batch);

/// The encoder of a loaded engine's tokenizer and chat template. Throws Error when it has no
/// tokenizer. `loaded` must outlive it.
TextPromptEncoder MakePromptEncoder(const LoadedEngine& loaded);

/// The token ids of a message from a user, after a system message unless that is null.
std::vector<int32_t> EncodeChatMessage(const TextPromptEncoder& encoder, const std::string& message,
                                       const std::string* system);

/// Sampling values that generation_config.json gives.
openai::SamplingDefaults ModelSamplingDefaults(const ModelConfig& config);

}  // namespace outrider::cli
