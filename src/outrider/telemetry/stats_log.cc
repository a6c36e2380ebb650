#include "outrider/telemetry/stats_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>

namespace outrider {

namespace {

double Ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0;
}

}  // namespace

std::vector<std::string> StatsLines(const EngineCounters& before, const EngineCounters& after,
                                    double seconds) {
  const int64_t prompt = after.prompt_tokens - before.prompt_tokens;
  const int64_t generated = after.generation_tokens - before.generation_tokens;
  if (prompt == 0 && generated == 0 && after.num_requests_running == 0 &&
      after.num_requests_waiting == 0) {
    return {};
  }
  const auto queries =
      static_cast<double>(after.prefix_cache_queries - before.prefix_cache_queries);
  const auto hits = static_cast<double>(after.prefix_cache_hits - before.prefix_cache_hits);
  std::vector<std::string> lines = {fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {} reqs, Waiting: {} reqs, KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
      Ratio(static_cast<double>(prompt), seconds), Ratio(static_cast<double>(generated), seconds),
      after.num_requests_running, after.num_requests_waiting, 100 * after.kv_cache_usage,
      100 * Ratio(hits, queries))};
  if (after.host_cache) {
    lines.front() += fmt::format(
        ", External prefix cache hit rate: {:.1f}%",
        100 * Ratio(static_cast<double>(after.host_cache_hits - before.host_cache_hits),
                    static_cast<double>(after.host_cache_queries - before.host_cache_queries)));
  }

  const SpeculationCounts& old_counts = before.speculation;
  const SpeculationCounts& new_counts = after.speculation;
  const int64_t drafts = new_counts.num_drafts - old_counts.num_drafts;
  if (drafts > 0) {
    const int64_t drafted = new_counts.num_draft_tokens - old_counts.num_draft_tokens;
    const int64_t accepted = new_counts.num_accepted_tokens - old_counts.num_accepted_tokens;
    std::string per_position;
    for (size_t i = 0; i < new_counts.accepted_per_position.size(); ++i) {
      const int64_t old =
          i < old_counts.accepted_per_position.size() ? old_counts.accepted_per_position[i] : 0;
      per_position +=
          fmt::format("{}{:.3f}", i == 0 ? "" : ", ",
                      Ratio(static_cast<double>(new_counts.accepted_per_position[i] - old),
                            static_cast<double>(drafts)));
    }
    lines.push_back(fmt::format(
        "SpecDecoding metrics: Mean acceptance length: {:.2f}, Accepted throughput: {:.1f} "
        "tokens/s, Drafted throughput: {:.1f} tokens/s, Accepted: {} tokens, Drafted: {} tokens, "
        "Per-position acceptance rate: {}, Avg Draft acceptance rate: {:.1f}%",
        1 + Ratio(static_cast<double>(accepted), static_cast<double>(drafts)),
        Ratio(static_cast<double>(accepted), seconds), Ratio(static_cast<double>(drafted), seconds),
        accepted, drafted, per_position,
        100 * Ratio(static_cast<double>(accepted), static_cast<double>(drafted))));
  }
  return lines;
}

StatsLog::StatsLog(const GenerationService& service, double interval_seconds)
    : service_(service), interval_seconds_(interval_seconds) {
  if (interval_seconds_ > 0) thread_ = std::thread([this] { Run(); });
}

StatsLog::~StatsLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StatsLog::Run() {
  using Clock = std::chrono::steady_clock;
  EngineCounters before = service_.Counters();
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, std::chrono::duration<double>(interval_seconds_),
                            [this] { return stop_; })) {
    EngineCounters now = service_.Counters();
    const Clock::time_point time = Clock::now();
    for (const std::string& line :
         StatsLines(before, now, std::chrono::duration<double>(time - last).count())) {
      SPDLOG_INFO("{}", line);
    }
    before = std::move(now);
    last = time;
  }
}

}  // namespace outrider
