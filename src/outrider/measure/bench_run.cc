#include "outrider/measure/bench_run.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <numeric>
#include <utility>

namespace outrider {

namespace {

double Ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0;
}

SpeculationCounts Difference(const SpeculationCounts& after, const SpeculationCounts& before) {
  SpeculationCounts grown = after;
  grown.num_drafts -= before.num_drafts;
  grown.num_draft_tokens -= before.num_draft_tokens;
  grown.num_accepted_tokens -= before.num_accepted_tokens;
  for (size_t i = 0; i < before.accepted_per_position.size(); ++i) {
    grown.accepted_per_position.at(i) -= before.accepted_per_position[i];
  }
  return grown;
}

}  // namespace

EngineCounters Growth(const EngineCounters& before, const EngineCounters& after) {
  EngineCounters grown;
  grown.num_steps = after.num_steps - before.num_steps;
  grown.prompt_tokens = after.prompt_tokens - before.prompt_tokens;
  grown.generation_tokens = after.generation_tokens - before.generation_tokens;
  grown.num_preemptions = after.num_preemptions - before.num_preemptions;
  grown.prefix_cache_queries = after.prefix_cache_queries - before.prefix_cache_queries;
  grown.prefix_cache_hits = after.prefix_cache_hits - before.prefix_cache_hits;
  grown.finished_stop = after.finished_stop - before.finished_stop;
  grown.finished_length = after.finished_length - before.finished_length;
  grown.finished_abort = after.finished_abort - before.finished_abort;
  grown.speculation = Difference(after.speculation, before.speculation);
  grown.plan_seconds = after.plan_seconds - before.plan_seconds;
  grown.model_seconds = after.model_seconds - before.model_seconds;
  grown.sample_seconds = after.sample_seconds - before.sample_seconds;
  grown.draft_seconds = after.draft_seconds - before.draft_seconds;
  grown.host_seconds = after.host_seconds - before.host_seconds;
  if (after.gpu) {
    grown.gpu = after.gpu;
    grown.gpu->idle_seconds -= before.gpu->idle_seconds;
    grown.gpu->passes_repeated -= before.gpu->passes_repeated;
    grown.gpu->passes_launched -= before.gpu->passes_launched;
  }
  return grown;
}

int64_t ResidentBytes() {
  // Its second number is what is in RAM, in pages.
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

int64_t BenchRow::GeneratedTokens() const {
  return std::accumulate(
      token_ids.begin(), token_ids.end(), int64_t{0},
      [](int64_t sum, const auto& ids) { return sum + static_cast<int64_t>(ids.size()); });
}

double BenchRow::TokensPerSecond() const {
  return Ratio(static_cast<double>(GeneratedTokens()), seconds);
}

double BenchRow::RequestsPerSecond() const {
  return Ratio(static_cast<double>(requests.size()), seconds);
}

double BenchRow::MillisecondsPerStep() const {
  return Ratio(seconds * 1e3, static_cast<double>(counters.num_steps));
}

double BenchRow::HostMicrosecondsPerStep() const {
  return Ratio(HostShare() * seconds * 1e6, static_cast<double>(counters.num_steps));
}

double BenchRow::HostShare() const {
  const double computing =
      counters.model_seconds + counters.sample_seconds + counters.draft_seconds;
  return Ratio(seconds - computing, seconds);
}

double BenchRow::PlanMicrosecondsPerStep() const {
  return Ratio(counters.plan_seconds * 1e6, static_cast<double>(counters.num_steps));
}

double BenchRow::MeanFirstTokenMilliseconds() const {
  double sum = 0;
  for (const RequestStats& stats : requests) sum += stats.first_token_seconds;
  return Ratio(sum * 1e3, static_cast<double>(requests.size()));
}

double BenchRow::MeanMillisecondsPerToken() const {
  double sum = 0;
  int64_t count = 0;
  for (const RequestStats& stats : requests) {
    if (stats.completion_tokens < 2) continue;
    sum += (stats.total_seconds - stats.first_token_seconds) /
           static_cast<double>(stats.completion_tokens - 1);
    ++count;
  }
  return Ratio(sum * 1e3, static_cast<double>(count));
}

BenchRow RunLoad(GenerationService& service, FunctionRef<void()> drive,
                 std::span<const GenerationRequest> requests, int32_t batch_size,
                 const std::atomic<bool>& interrupted) {
  BenchRow row;
  row.requests.resize(requests.size());
  row.token_ids.resize(requests.size());
  const EngineCounters before = service.Counters();
  std::vector<RequestId> submitted;
  size_t finished = 0;
  const auto start = std::chrono::steady_clock::now();
  while (finished < requests.size()) {
    while (submitted.size() < requests.size() &&
           submitted.size() - finished < static_cast<size_t>(batch_size)) {
      const size_t index = submitted.size();
      submitted.push_back(
          service.Submit(requests[index], [&row, &finished, index](RequestId, OutputDelta&& delta) {
            std::vector<int32_t>& ids = row.token_ids[index];
            ids.insert(ids.end(), delta.token_ids.begin(), delta.token_ids.end());
            if (delta.finish_reason.has_value()) {
              row.requests[index] = std::move(delta.stats);
              ++finished;
            }
          }));
    }
    if (interrupted.load(std::memory_order_relaxed)) {
      // The sinks refer to this function's variables, so every request has to end here.
      for (const RequestId id : submitted) service.Abort(id);
      while (finished < submitted.size()) drive();
      throw Interrupted();
    }
    drive();
  }
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  row.counters = Growth(before, service.Counters());
  row.resident_bytes = ResidentBytes();
  return row;
}

}  // namespace outrider
