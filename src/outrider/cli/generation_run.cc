#include "outrider/cli/generation_run.h"

#include <iterator>
#include <utility>

namespace outrider::cli {

GenerationResult RunGeneration(GenerationService& service, GenerationRequest request,
                               FunctionRef<void()> drive,
                               const std::function<void(std::string_view)>& on_text,
                               const std::atomic<bool>& interrupted) {
  GenerationResult result;
  bool finished = false;
  const RequestId id = service.Submit(std::move(request), [&](RequestId, OutputDelta&& delta) {
    result.text += delta.text;
    if (!delta.text.empty()) on_text(delta.text);
    result.token_ids.insert(result.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(result.logprobs));
    std::move(delta.prompt_logprobs.begin(), delta.prompt_logprobs.end(),
              std::back_inserter(result.prompt_logprobs));
    if (delta.finish_reason.has_value()) {
      result.finish_reason = *delta.finish_reason;
      result.stop_reason = std::move(delta.stop_reason);
      result.stats = std::move(delta.stats);
      finished = true;
    }
  });
  bool aborted = false;
  while (!finished) {
    if (interrupted.load(std::memory_order_relaxed) && !aborted) {
      service.Abort(id);
      aborted = true;
      if (finished) break;  // the sink may be called from Abort itself
    }
    drive();
  }
  return result;
}

}  // namespace outrider::cli
