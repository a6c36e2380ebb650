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
  void ObserveSubmission(int32_t max_tokens);
  /// The queue was full.
  void CountRefusal();
  /// Seconds between two deltas with tokens of one request, as vLLM counts it: once per step,
  /// however many tokens the step emitted.
  void ObserveTokenInterval(double seconds);
  void ObserveFinished(const RequestStats& stats);

  /// Prometheus' text format 0.0.4, with this snapshot of the engine.
  std::string Render(const EngineCounters& counters) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
