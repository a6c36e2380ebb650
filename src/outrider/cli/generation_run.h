// One request through an engine from submission to its last token, with its text as it comes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "outrider/base/function_ref.h"
#include "outrider/engine/generation_service.h"

namespace outrider::cli {

/// What a request gave in all.
struct GenerationResult {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;         // one per token id when asked for, else empty
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt's tokens from the second on
  FinishReason finish_reason = FinishReason::kAbort;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
  RequestStats stats;
};

/// Submits `request` and calls `drive` (one step of the engine, which calls the sink) until it has
/// finished. Each piece of text goes to `on_text`. When `interrupted` becomes true, the request is
/// aborted and ends with FinishReason::kAbort. Throws what Submit throws.
GenerationResult RunGeneration(GenerationService& service, GenerationRequest request,
                               FunctionRef<void()> drive,
                               const std::function<void(std::string_view)>& on_text,
                               const std::atomic<bool>& interrupted);

}  // namespace outrider::cli
