// One request through an engine from submission to its last token, with its text as it comes.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "outrider/base/function_ref.h"
#include "outrider/generate/generator.h"

namespace outrider::cli {

/// Submits `request`, one choice of one prompt, and calls `drive` (one step of the engine, which
/// calls the sink) until it has finished. Each piece of text goes to `on_text`. When `interrupted`
/// becomes true, the request is aborted and ends with FinishReason::kAbort. All of it is returned
/// as one delta. Throws what Generator::Stream throws.
OutputDelta RunGeneration(Generator& generator, openai::TokenRequest request,
                          FunctionRef<void()> drive,
                          const std::function<void(std::string_view)>& on_text,
                          const std::atomic<bool>& interrupted);

}  // namespace outrider::cli
