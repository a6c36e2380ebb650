// What /metrics shows: the engine's counters and the server's histograms under vLLM's names, so
// that existing dashboards and load generators read them unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outrider/engine/generation_service.h"

namespace outrider {

class ServerMetrics {
 public:
  /// Label values: `model_name` as given, engine "0". `max_model_len` bounds the count buckets.
  ServerMetrics(const std::string& model_name, int32_t max_model_len);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // Thread-safe.
  /// A request for `n` choices per prompt, each of at most `max_tokens`.
  void ObserveRequest(int32_t n, int32_t max_tokens);
  /// The queue was full.
  void CountRefusal();
  /// Seconds between two deltas with tokens of one request, as vLLM counts it: once per step,
  /// however many tokens the step emitted.
  void ObserveTokenInterval(double seconds);
  /// Seconds from submission to the first token of a choice.
  void ObserveFirstToken(double seconds);
  /// A choice has ended.
  void ObserveFinished(const RequestStats& stats);
  /// All choices of a request have ended; the longest has this many tokens.
  void ObserveLongestChoice(int64_t tokens);
  /// A request begins (+1) or ends (-1) to wait for its grammar, before the engine's queue.
  void AddDeferred(int32_t change);

  /// Prometheus' text format 0.0.4, with this snapshot of the engine.
  std::string Render(const EngineCounters& counters) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
