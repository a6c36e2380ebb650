// The lines of statistics that a server logs while it works, with the words people grep vLLM's logs
// for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "outrider/engine/generation_service.h"

namespace outrider {

/// The lines for what happened between two snapshots `seconds` apart: throughput, queue and cache;
/// acceptance when drafts were verified. None when nothing ran and nothing waits.
std::vector<std::string> StatsLines(const EngineCounters& before, const EngineCounters& after,
                                    double seconds);

/// Logs StatsLines every `interval_seconds` on a thread of its own until destroyed. An interval of
/// 0 logs nothing.
class StatsLog {
 public:
  StatsLog(const GenerationService& service, double interval_seconds);
  ~StatsLog();
  StatsLog(const StatsLog&) = delete;
  StatsLog& operator=(const StatsLog&) = delete;

 private:
  void Run();

  const GenerationService& service_;
  const double interval_seconds_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace outrider
