// A fixed load through an engine, timed: the measurement behind each row of `outrider bench`.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/function_ref.h"
#include "outrider/engine/generation_service.h"

namespace outrider {

/// What a load did.
struct BenchRow {
  int32_t spec_tokens = 0;
  double seconds = 0;       // wall clock, from the first submission to the last token
  EngineCounters counters;  // what grew during the load; kv_cache_usage and the queue are zero
  std::vector<RequestStats> requests;           // in the order of the load
  std::vector<std::vector<int32_t>> token_ids;  // likewise
  int64_t resident_bytes = 0;                   // memory of the process after the load

  int64_t GeneratedTokens() const;
  double TokensPerSecond() const;
  double RequestsPerSecond() const;
  double MillisecondsPerStep() const;
  /// Wall time outside the target, the sampler and the drafter: per step in microseconds, and as a
  /// share of all time.
  double HostMicrosecondsPerStep() const;
  double HostShare() const;
  /// The engine's own count of that: plan, layout, commit and output.
  double PlanMicrosecondsPerStep() const;
  double MeanFirstTokenMilliseconds() const;
  /// Mean over requests of the time after the first token per token after the first.
  double MeanMillisecondsPerToken() const;
};

/// Ctrl-C ended a measurement; exit code 130.
class Interrupted : public Error {
 public:
  Interrupted() : Error(ErrorCode::kUnavailable, "interrupted") {}
};

/// Submits the requests in order, at most `batch_size` unfinished ones at a time, and calls `drive`
/// (one step) until all have finished. Throws Interrupted when `interrupted` becomes true.
BenchRow RunLoad(GenerationService& service, FunctionRef<void()> drive,
                 std::span<const GenerationRequest> requests, int32_t batch_size,
                 const std::atomic<bool>& interrupted);

/// What counters grew by; kv_cache_usage and the queue are zero.
EngineCounters Growth(const EngineCounters& before, const EngineCounters& after);

/// Memory of this process that is in RAM, in bytes.
int64_t ResidentBytes();

}  // namespace outrider
