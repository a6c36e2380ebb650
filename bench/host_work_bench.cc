// Host work of a step: plan, layout, commit, output, sampling and the drafter's bookkeeping,
// without the model's arithmetic. A model of random weights, as small as the format allows, so that
// caches and memory behave as with a large vocabulary left out; one thread; every request decodes
// with k = 3.
//
//   host_work_bench [--steps N] [--requests N]
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "outrider/engine/engine.h"
#include "outrider/engine/engine_loader.h"
#include "tests/networks/small_model.h"

namespace outrider {
namespace {

/// Median over steps of the host's microseconds, and rows per step.
struct Figures {
  double host_microseconds = 0;
  double plan_microseconds = 0;
};

Figures Measure(const std::string& model, int32_t num_requests, int32_t steps) {
  EngineOptions options;
  options.model = model;
  options.load_format = LoadFormat::kDummy;
  options.num_threads = 1;
  options.max_num_seqs = num_requests;
  options.max_num_batched_tokens = 8192;
  options.kv_cache_memory_bytes = int64_t{1} << 30;
  const LoadedEngine loaded = LoadEngine(options, nullptr);
  Engine& engine = *loaded.engine;
  for (int32_t i = 0; i < num_requests; ++i) {
    GenerationRequest request;
    for (int32_t t = 0; t < 16; ++t) request.prompt_token_ids.push_back((t * 7 + i) % 60 + 2);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 4000;
    engine.Submit(std::move(request), [](RequestId, OutputDelta&&) {});
  }
  for (int i = 0; i < 20; ++i) engine.Step();
  std::vector<double> host;
  std::vector<double> plan;
  for (int32_t i = 0; i < steps; ++i) {
    const EngineCounters before = engine.Counters();
    engine.Step();
    const EngineCounters after = engine.Counters();
    host.push_back((after.host_seconds - before.host_seconds) * 1e6);
    plan.push_back((after.plan_seconds - before.plan_seconds) * 1e6);
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  return {median(host), median(plan)};
}

int Main(int argc, char** argv) {
  int32_t steps = 300;
  int32_t only = 0;
  for (int i = 1; i < argc; i += 2) {
    int32_t* value = nullptr;
    if (std::strcmp(argv[i], "--steps") == 0) value = &steps;
    if (std::strcmp(argv[i], "--requests") == 0) value = &only;
    if (value == nullptr || i + 1 == argc ||
        std::from_chars(argv[i + 1], argv[i + 1] + std::strlen(argv[i + 1]), *value).ec !=
            std::errc()) {
      fmt::print(stderr, "usage: host_work_bench [--steps N] [--requests N]\n");
      return 2;
    }
  }
  const SmallModel model(1, 64);
  fmt::print(
      "| requests | host us/step | of it plan, layout, commit, output | goal "
      "|\n|---|---|---|---|\n");
  for (const auto& [requests, goal] : {std::pair{1, "20"}, {64, ""}, {256, "100"}}) {
    if (only != 0 && only != requests) continue;
    const Figures figures = Measure(model.directory().string(), requests, steps);
    fmt::print("| {} | {:.1f} | {:.1f} | {} |\n", requests, figures.host_microseconds,
               figures.plan_microseconds, goal);
  }
  return 0;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Main(argc, argv); }
