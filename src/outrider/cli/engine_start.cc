#include "outrider/cli/engine_start.h"

#include <spdlog/spdlog.h>

#include <iostream>

namespace outrider::cli {

LoadedEngine LoadAndLog(const EngineOptions& options, const LoadProgress& progress) {
  if (!KeepsExactness(options.attention_backend)) {
    SPDLOG_WARN(
        "--attention-backend {}: output can depend on batching and drafts; ragged and uniform-pad "
        "keep it exact",
        AttentionBackendName(options.attention_backend));
  }
  LoadedEngine loaded = LoadEngine(options, progress, [](const StepTimes::Batch& batch) {
    SPDLOG_INFO("{}", StepTimesLine(batch));
  });
  if (loaded.step_times && loaded.step_times->batches.empty()) {
    SPDLOG_WARN(
        "steps with {} numbers of drafts could not be measured within seconds, or the KV cache has "
        "no room for it: always {} drafts",
        1 + loaded.num_speculative_tokens, loaded.num_speculative_tokens);
  }
  return loaded;
}

LoadedEngine LoadWithProgress(const EngineOptions& options, ProgressStyle style) {
  LoadProgressPrinter printer(
      [style](const std::string& text) {
        if (style == ProgressStyle::kRewrite) {
          std::cerr << text << std::flush;
        } else {
          SPDLOG_INFO("{}", text);
        }
      },
      style);
  return LoadAndLog(options, [&](int64_t done, int64_t total) { printer.Update(done, total); });
}

std::string StepTimesLine(const StepTimes::Batch& batch) {
  const double none = batch.seconds.front();
  std::string line =
      fmt::format("step times, {} request{}: {:.3g} ms without drafts", batch.num_requests,
                  batch.num_requests == 1 ? "" : "s", 1e3 * none);
  for (size_t k = 1; k < batch.seconds.size(); ++k) {
    line += fmt::format(", x {:.2f} with {}", batch.seconds[k] / none, k);
  }
  if (batch.looking_seconds > 0) {
    line += fmt::format(", x {:.2f} with lookups that find none", batch.looking_seconds / none);
  }
  return line;
}

}  // namespace outrider::cli
