#include "outrider/cli/generation_run.h"

#include <utility>

namespace outrider::cli {

OutputDelta RunGeneration(Generator& generator, openai::TokenRequest request,
                          FunctionRef<void()> drive,
                          const std::function<void(std::string_view)>& on_text,
                          const std::atomic<bool>& interrupted) {
  OutputDelta result;
  const StartedRequest started =
      generator.Stream(std::move(request), [&](size_t /*choice*/, OutputDelta&& delta) {
        if (!delta.text.empty()) on_text(delta.text);
        JoinDeltas(std::move(delta), &result);
      });
  bool aborted = false;
  while (!result.finish_reason) {
    if (interrupted.load(std::memory_order_relaxed) && !aborted) {
      generator.Abort(started.ids.front());
      aborted = true;
      if (result.finish_reason) break;  // the sink may be called from Abort itself
    }
    drive();
  }
  return result;
}

}  // namespace outrider::cli
