#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/base/processors.h"
#include "outrider/base/thread_pool.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/interrupt.h"
#include "outrider/cli/server_options.h"
#include "outrider/engine/engine_thread.h"
#include "outrider/engine/plan/rank_plan.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/measure/bench_load.h"
#include "outrider/measure/bench_report.h"
#include "outrider/measure/bench_run.h"
#include "outrider/measure/kernel_bench.h"
#include "outrider/measure/serve_load.h"
#include "outrider/server/server.h"

namespace outrider::cli {

namespace {

constexpr int32_t kLatencyPrompts = 8;
constexpr int32_t kThroughputPrompts = 64;
constexpr int32_t kWarmUpTokens = 16;
constexpr uint64_t kWarmUpSeed = 0x7761726d7570;

/// What every row of a table runs.
struct Load {
  std::vector<GenerationRequest> requests;
  int32_t batch_size = 1;
};

/// Ids that the tokenizer knows: the padding of a vocabulary was never trained.
int32_t VocabularySize(const LoadedEngine& loaded) {
  const int32_t size = loaded.engine->vocab_size();
  return loaded.tokenizer == nullptr ? size : std::min(size, loaded.tokenizer->vocab_size());
}

std::vector<std::vector<int32_t>> Prompts(const BenchSettings& bench, const LoadedEngine& loaded,
                                          int32_t random_count, uint64_t seed) {
  if (bench.prompts_file.empty()) {
    return RandomPrompts(random_count, bench.input_len, VocabularySize(loaded), seed);
  }
  return EncodePromptsFile(loaded, bench.prompts_file);
}

Load MakeLoad(const BenchSettings& bench, bool latency, const LoadedEngine& loaded, uint64_t seed) {
  const int32_t default_count = latency ? kLatencyPrompts : kThroughputPrompts;
  const int32_t count = bench.num_prompts.value_or(default_count);
  const auto prompts = Prompts(bench, loaded, count, seed);
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(bench.temperature);
  sampling.max_tokens = bench.output_len;
  sampling.ignore_eos = bench.ignore_eos || bench.prompts_file.empty();
  Load load;
  load.requests = MakeRequests(
      prompts, bench.num_prompts.value_or(static_cast<int32_t>(prompts.size())), sampling, seed);
  load.batch_size =
      bench.batch_size.value_or(latency ? 1 : static_cast<int32_t>(load.requests.size()));
  return load;
}

/// Prompts for warming up: their own, so that no cache knows the measured ones.
std::vector<GenerationRequest> WarmUpRequests(const Load& load, const LoadedEngine& loaded) {
  const int32_t length = std::clamp(loaded.engine->max_model_len() / 2, 1, kWarmUpTokens);
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.ignore_eos = true;
  sampling.max_tokens = length;
  const auto prompts = RandomPrompts(load.batch_size, length, VocabularySize(loaded), kWarmUpSeed);
  return MakeRequests(prompts, load.batch_size, sampling, kWarmUpSeed);
}

/// The engine of the row with k drafts. Synthetic acceptance is given for the most drafts; with
/// fewer the first k are accepted as often.
EngineOptions WithDrafts(EngineOptions options, int32_t k) {
  SpeculationOptions& speculation = options.speculation;
  speculation.num_speculative_tokens = k;
  if (k == 0) return options;
  std::vector<double>& rates = speculation.synthetic_acceptance_rates;
  if (std::ssize(rates) > k) rates.resize(static_cast<size_t>(k));
  std::optional<double>& length = speculation.synthetic_acceptance_length;
  if (length) length = std::min(*length, 1.0 + k);
  return options;
}

/// A server in front of `loaded` on a free port, until destroyed.
class BenchServer {
 public:
  BenchServer(const Settings& settings, const LoadedEngine& loaded)
      : encoder_(MakePromptEncoder(loaded)),
        server_(Options(settings, loaded), *loaded.engine, encoder_, loaded.grammars.get()),
        engine_thread_(*loaded.engine, [this](const std::string&) { server_.Stop(); }),
        thread_([this] { server_.Run(); }) {}
  ~BenchServer() {
    server_.Stop();
    thread_.join();
  }
  BenchServer(const BenchServer&) = delete;
  BenchServer& operator=(const BenchServer&) = delete;

  uint16_t port() const { return server_.port(); }

 private:
  static ServerOptions Options(const Settings& settings, const LoadedEngine& loaded) {
    ServerOptions options = MakeServerOptions(settings, loaded);
    options.http.port = 0;
    options.http.handle_signals = false;
    options.http.shutdown_seconds = 0;
    return options;
  }

  TextPromptEncoder encoder_;
  Server server_;
  EngineThread engine_thread_;
  std::thread thread_;
};

BenchRow MeasureServer(const Settings& settings, const Load& load, const LoadedEngine& loaded,
                       const std::atomic<bool>& interrupted) {
  const BenchServer server(settings, loaded);
  const auto run = [&](std::span<const GenerationRequest> requests) {
    return RunServeLoad(server.port(), settings.serve.served_model_names.front(), *loaded.engine,
                        requests, load.batch_size, interrupted);
  };
  run(WarmUpRequests(load, loaded));
  return run(load.requests);
}

BenchRow Measure(const Load& load, const LoadedEngine& loaded,
                 const std::atomic<bool>& interrupted) {
  const auto step = [&] { loaded.engine->Step(); };
  RunLoad(*loaded.engine, step, WarmUpRequests(load, loaded), load.batch_size, interrupted);
  return RunLoad(*loaded.engine, step, load.requests, load.batch_size, interrupted);
}

void CheckWritten(const std::string& path, bool written) {
  if (!written) throw InvalidArgument("--json: cannot write '{}'", path);
}

/// Opens the file of --json, before anything is measured. No file: "", and "-" for standard output.
void CheckCanWrite(const std::string& path) {
  if (path.empty() || path == "-") return;
  CheckWritten(path, std::ofstream(path, std::ios::app).is_open());
}

/// The table to standard output, and JSON where it is asked for; the table goes to standard error
/// when standard output is for JSON.
void Print(const std::string& table, const std::string& json, const std::string& path) {
  if (path == "-") {
    PrintLine(spdlog::level::info, table.substr(0, table.find_last_not_of('\n') + 1));
    std::cout << json << std::flush;
    return;
  }
  std::cout << table << std::flush;
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << json;
  file.close();
  CheckWritten(path, !file.fail());
}

}  // namespace

int RunBenchKernels(const Settings& settings) {
  CheckCanWrite(settings.bench.json);
  const Isa isa = SelectIsa();
  const ComputeThreads threads = PlanThreads(settings.engine, UsableProcessors());
  ThreadPool pool(threads.count, threads.processors);
  KernelReport report = MeasureKernels(isa, pool, [](const KernelFigure& figure) {
    PrintLine(spdlog::level::info, fmt::format("{}: {:.2f}", figure.name, figure.ratio));
  });
  report.cpu = CpuName();
  Print(KernelTableText(report), KernelJson(report), settings.bench.json);
  return 0;
}

int RunBench(const Settings& settings, Command command) {
  const BenchSettings& bench = settings.bench;
  const bool latency = command == Command::kBenchLatency;
  EngineOptions engine = settings.engine;
  // Rows are compared by their k, so a row drafts as many tokens as it says unless asked otherwise.
  if (!engine.speculation.adaptive) engine.speculation.adaptive = false;
  CheckCanWrite(bench.json);
  const InterruptFlag interrupt;
  BenchReport report;
  report.command = CommandName(command).substr(std::string_view("bench ").size());
  report.model = engine.model;
  report.prompts = bench.prompts_file.empty() ? "random" : bench.prompts_file;
  report.output_len = bench.output_len;
  report.temperature = bench.temperature;
  report.cpu = CpuName();
  report.num_threads = PlanThreads(engine, UsableProcessors()).count;
  report.ranks = engine.tensor_parallel_size;
  report.compares_outputs = engine.speculation.rejection_sample_method == RejectionMethod::kMatch;
  report.draft_length_varies = engine.speculation.DraftLengthVaries();

  // Each k gets an engine of its own. Without a list, the model's default k is measured first,
  // since only a loaded engine knows it.
  std::vector<int32_t> waiting = bench.spec_tokens;
  bool ask_engine = waiting.empty();
  while (ask_engine || !waiting.empty()) {
    EngineOptions options = engine;
    if (!ask_engine) {
      options = WithDrafts(options, waiting.front());
      waiting.erase(waiting.begin());
    }
    LoadedEngine loaded =
        LoadWithProgress(options, StandardErrorStyle(settings.log_format, ProgressStyle::kNone));
    const Load load = MakeLoad(bench, latency, loaded, engine.seed);
    report.model_type = loaded.config.model_type;
    report.isa = loaded.kernels;
    report.dtype = DTypeName(options.dtype.value_or(
        loaded.config.dtype == DType::kF16 ? DType::kF32 : loaded.config.dtype));
    report.num_prompts = static_cast<int32_t>(load.requests.size());
    report.batch_size = load.batch_size;
    size_t prompt_tokens = 0;
    for (const GenerationRequest& request : load.requests) {
      prompt_tokens += request.prompt_token_ids.size();
    }
    report.prompt_tokens_mean =
        static_cast<double>(prompt_tokens) / static_cast<double>(load.requests.size());
    report.rows.push_back(command == Command::kBenchServe
                              ? MeasureServer(settings, load, loaded, interrupt.interrupted())
                              : Measure(load, loaded, interrupt.interrupted()));
    BenchRow& row = report.rows.back();
    row.spec_tokens = loaded.engine->num_speculative_tokens();
    PrintLine(spdlog::level::info,
              fmt::format("k = {}: {:.1f} tokens/s", row.spec_tokens, row.TokensPerSecond()));
    if (ask_engine) {
      ask_engine = false;
      for (int32_t k = 0; k < row.spec_tokens; ++k) waiting.push_back(k);
    }
  }
  std::sort(report.rows.begin(), report.rows.end(),
            [](const BenchRow& a, const BenchRow& b) { return a.spec_tokens < b.spec_tokens; });

  Print(BenchTable(report), BenchJson(report), bench.json);
  return report.compares_outputs && !report.OutputsEqual() ? 1 : 0;
}

}  // namespace outrider::cli
