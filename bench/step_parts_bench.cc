// Where the time of a decode step of one request goes: the kernels of the table, each with its own
// clock, and the parts of the step, for k = 0 and larger. The same answer is generated again and
// again, and each part of each step counts with its median over the repetitions, so that what other
// programs do in between matters little. Prints Markdown.
//
//   step_parts_bench [--model DIR] [--threads N] [--repeats N] [--context N] [--k N]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "outrider/base/cpu_features.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/engine/checkpoints.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/engine_device.h"
#include "outrider/execute/step_runner.h"
#include "outrider/networks/mtp_draft_model.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/source_directory.h"

namespace outrider::bench {
namespace {

/// What is timed: first the entries of the kernel table, then the parts of a step.
enum Part {
  kMatMul,
  kAttention,
  kNorm,
  kSilu,
  kRotate,
  kWriteLatent,
  kCombine,
  kNumKernels,
  kForward = kNumKernels,
  kVerify,
  kDraft,
  kHost,
  kStep,
  kNumParts
};
constexpr std::array<const char*, kNumParts> kNames = {
    "matrix products", "attention", "norms",  "silu",   "rotary", "cache entries",
    "expert sums",     "trunk",     "verify", "drafts", "host",   "step"};

using Times = std::array<double, kNumParts>;
Times g_times;
double g_macs = 0;
const KernelTable* g_kernels = nullptr;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls an entry of the table and adds its time to `part`.
template <Part part, auto entry, typename... Args>
void Timed(ThreadPool& pool, Args... args) {
  const double start = Now();
  (g_kernels->*entry)(pool, args...);
  g_times[part] += Now() - start;
}

template <Part part, auto entry, typename... Args>
constexpr auto TimedEntry(void (*KernelTable::*)(ThreadPool&, Args...)) {
  return &Timed<part, entry, Args...>;
}

/// Calls of the matrix product with the same shapes.
struct Product {
  double macs = 0;
  double bytes = 0;
  std::vector<double> seconds;
};
/// By outputs of the first job (0: more than two jobs), outputs and inputs of the last, rows.
std::map<std::array<int64_t, 4>, Product> g_products;

void TimedMatMul(ThreadPool& pool, std::span<const MatMulJob> jobs, DType dtype) {
  const double start = Now();
  g_kernels->matmul(pool, jobs, dtype);
  const double seconds = Now() - start;
  g_times[kMatMul] += seconds;
  double macs = 0;
  double bytes = 0;
  int64_t rows = 0;
  for (const MatMulJob& job : jobs) {
    const auto weights = static_cast<double>(job.w->rows * job.w->cols);
    macs += weights * static_cast<double>(job.y.rows);
    bytes += weights * static_cast<double>(DTypeSize(job.w->format.dtype));
    rows = std::max(rows, job.y.rows);
  }
  g_macs += macs;
  // Names are made after the step, whose time this is part of.
  const PackedMatrix& first = *jobs.front().w;
  const PackedMatrix& last = *jobs.back().w;
  Product& product =
      g_products[{jobs.size() > 2 ? int64_t{0} : first.rows, last.rows, last.cols, rows}];
  product.macs += macs;
  product.bytes += bytes;
  product.seconds.push_back(seconds);
}

KernelTable TimedTable() {
  using T = KernelTable;
  T table = *g_kernels;
  table.matmul = TimedMatMul;
  table.matmul_arg_max = TimedEntry<kMatMul, &T::matmul_arg_max>(&T::matmul_arg_max);
  table.rms_norm = TimedEntry<kNorm, &T::rms_norm>(&T::rms_norm);
  table.silu_mul = TimedEntry<kSilu, &T::silu_mul>(&T::silu_mul);
  table.gate_heads = TimedEntry<kSilu, &T::gate_heads>(&T::gate_heads);
  table.rotate = TimedEntry<kRotate, &T::rotate>(&T::rotate);
  table.write_entries = TimedEntry<kWriteLatent, &T::write_entries>(&T::write_entries);
  table.write_latent = TimedEntry<kWriteLatent, &T::write_latent>(&T::write_latent);
  table.absorbed_attention = TimedEntry<kAttention, &T::absorbed_attention>(&T::absorbed_attention);
  table.per_head_attention = TimedEntry<kAttention, &T::per_head_attention>(&T::per_head_attention);
  table.expanded_attention = TimedEntry<kAttention, &T::expanded_attention>(&T::expanded_attention);
  table.combine_experts = TimedEntry<kCombine, &T::combine_experts>(&T::combine_experts);
  return table;
}

struct Options {
  std::string model = SourceDirectory() / "models/tiny-v3-mtp3";
  int threads = 1;
  int repeats = 100;
  double rank = 0.5;
  int context = 34;
  std::vector<int> k = {0, 3};
};

EngineParts MakeParts(const Options& options, int k, const Ops& ops) {
  RankParts inside;
  inside.pool = std::make_unique<ThreadPool>(options.threads);
  EngineOptions engine;
  engine.model = options.model;
  engine.dtype = DType::kBF16;
  const Checkpoints checkpoints = OpenCheckpoints(engine);
  Decisions decisions;
  const EnginePlan plan =
      PlanEngine(engine, checkpoints.facts, OpenDevice(engine.device).facts, decisions);
  inside.model = LoadNetwork(checkpoints.facts.config, k, *checkpoints.model, plan.numbers.weights,
                             {{ops, inside.pool.get()},
                              plan.numbers.dtype,
                              AttentionPlan(AttentionBackend::kRagged, 1 + k, plan.form.paths)});
  EngineParts parts;
  parts.scheduler = {
      .cache = {}, .max_num_seqs = 1, .max_num_batched_tokens = 2048, .max_model_len = 4096};
  const NetworkCache needs = inside.model->cache_needs();
  parts.scheduler.cache = MakeCacheConfig(needs, plan.numbers.cache(), 64, 64);
  inside.cache = std::make_unique<KvCache>(inside.model->device(), parts.scheduler.cache,
                                           needs.layers, plan.numbers.cache());
  if (k > 0) {
    inside.drafter = std::make_unique<ChainDrafter>(std::make_unique<MtpDraftModel>(*inside.model),
                                                    *inside.cache, ModuleDrafterOptions{.k = k});
    parts.draft_schedule = DraftSchedule(k, {});
    parts.scheduler.max_drafts = k;
    parts.scheduler.tokens_ahead = inside.drafter->reach().tokens_ahead;
  }
  inside.num_slots = 1;
  parts.executor = std::make_unique<StepRunner>(std::move(inside));
  parts.prefix_caching = false;
  return parts;
}

/// The value that a share `rank` of them are below.
double Ranked(std::vector<double>& values, double rank) {
  const auto at = values.begin() + static_cast<int64_t>(static_cast<double>(values.size()) * rank);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Times of the prompt's step, first, and of the decode steps of one answer.
std::vector<Times> RunOnce(EngineCore& core, const std::vector<int32_t>& prompt, RequestId id,
                           int* tokens, double* macs) {
  GenerationRequest request;
  request.prompt_token_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 128;
  *tokens = 0;
  core.Add(id, std::move(request), [&](RequestId, OutputDelta&& delta) {
    *tokens += static_cast<int>(delta.token_ids.size());
  });
  std::vector<Times> steps;
  EngineCounters before;
  EngineCounters after;
  while (!core.Idle()) {
    core.ReadCounters(before);
    g_times.fill(0);
    g_macs = 0;
    const double start = Now();
    core.Step();
    g_times[kStep] = Now() - start;
    core.ReadCounters(after);
    if (steps.empty()) {  // the prompt's
      *tokens = 0;
      g_macs = 0;
    }
    g_times[kForward] = after.model_seconds - before.model_seconds;
    g_times[kVerify] = after.sample_seconds - before.sample_seconds;
    g_times[kDraft] = after.draft_seconds - before.draft_seconds;
    g_times[kHost] = after.host_seconds - before.host_seconds;
    *macs += g_macs;
    steps.push_back(g_times);
  }
  return steps;
}

/// The first held-out problem of tools/evaluate.py as a chat; behind earlier turns until the prompt
/// has `context` tokens.
std::vector<int32_t> MakePrompt(const Options& options) {
  constexpr std::string_view kQuestion =
      "<｜User｜>Milan has 11 bags with 25 balloons each and 8 jars with 24 bottles each. How many "
      "things does Milan have altogether?<｜Assistant｜>";
  constexpr std::string_view kAnswer =
      "First, 11 * 25 = 275 balloons. Next, 8 * 24 = 192 bottles. So 275 + 192 = 467 things.\n"
      "#### 467<｜end▁of▁sentence｜>";
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(options.model);
  std::string text = "<｜begin▁of▁sentence｜>";
  std::vector<int32_t> tokens;
  for (;;) {
    tokens = tokenizer.Encode(text + std::string(kQuestion), false);
    if (static_cast<int>(tokens.size()) >= options.context) return tokens;
    text += std::string(kQuestion) + std::string(kAnswer);
  }
}

void Report(const Options& options, int k) {
  static const KernelTable kernels = TimedTable();
  static const cpu::CpuOps ops(kernels);
  g_products.clear();
  EngineCore core(MakeParts(options, k, ops));
  const std::vector<int32_t> prompt = MakePrompt(options);
  std::vector<std::vector<Times>> runs;
  int tokens = 0;
  double macs = 0;
  for (int i = 0; i < options.repeats + 3; ++i) {
    macs = 0;
    auto steps = RunOnce(core, prompt, static_cast<RequestId>(i), &tokens, &macs);
    if (i < 3) continue;  // warming up
    runs.push_back(std::move(steps));
  }
  const size_t num_steps = runs.front().size() - 1;
  Times of_prompt{};
  Times mean{};
  std::vector<double> values;
  for (size_t s = 0; s <= num_steps; ++s) {
    for (size_t part = 0; part < kNumParts; ++part) {
      values.clear();
      for (const auto& run : runs) values.push_back(run[s][part]);
      const double us = Ranked(values, options.rank) * 1e6;
      if (s == 0) {
        of_prompt[part] = us;
      } else {
        mean[part] += us / static_cast<double>(num_steps);
      }
    }
  }
  const double kernels_us = std::accumulate(mean.begin(), mean.begin() + kNumKernels, 0.0);
  fmt::print(
      "k = {}, prompt {}, {} threads: {} tokens in {} steps\n\n| | prompt | step | |\n"
      "|---|---|---|---|\n",
      k, prompt.size(), options.threads, tokens, num_steps);
  for (size_t part = 0; part < kNumParts; ++part) {
    const double per_step = macs / static_cast<double>(num_steps);
    fmt::print("| {} | {:.0f} us | {:.0f} us | {} |\n", kNames[part], of_prompt[part], mean[part],
               part == kMatMul ? fmt::format("{:.1f} M MACs, {:.1f} GMAC/s", per_step * 1e-6,
                                             per_step * 1e-3 / mean[part])
                               : "");
  }
  const double prompt_us = std::accumulate(of_prompt.begin(), of_prompt.begin() + kNumKernels, 0.0);
  fmt::print("| outside kernels | {:.0f} us | {:.0f} us | |\n\n", of_prompt[kStep] - prompt_us,
             mean[kStep] - kernels_us);
  fmt::print("per token: {:.0f} us\n\n",
             mean[kStep] * static_cast<double>(num_steps) / static_cast<double>(tokens));
  fmt::print(
      "| weights | rows | us per answer | us per call | GMAC/s | GB/s "
      "|\n|---|---|---|---|---|---|\n");
  const double answers = options.repeats + 3;
  for (auto& [shape, product] : g_products) {
    const auto [first, n, cols, rows] = shape;
    const std::string name = first == n   ? fmt::format("{} × {} | {}", n, cols, rows)
                             : first == 0 ? fmt::format("several {} × {} | {}", n, cols, rows)
                                          : fmt::format("{} + {} × {} | {}", first, n, cols, rows);
    const auto calls = static_cast<double>(product.seconds.size());
    const double us = Ranked(product.seconds, options.rank) * 1e6;
    fmt::print("| {} | {:.0f} | {:.1f} | {:.1f} | {:.1f} |\n", name, us * calls / answers, us,
               product.macs / calls / us * 1e-3, product.bytes / calls / us * 1e-3);
  }
  fmt::print("\n");
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--model") options.model = argv[i + 1];
    if (flag == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (flag == "--repeats") options.repeats = std::atoi(argv[i + 1]);
    if (flag == "--rank") options.rank = std::atof(argv[i + 1]);
    if (flag == "--context") options.context = std::atoi(argv[i + 1]);
    if (flag == "--k") options.k = {std::atoi(argv[i + 1])};
  }
  g_kernels = &GetKernels(SelectIsa());
  for (const int k : options.k) Report(options, k);
  return 0;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) { return outrider::bench::Main(argc, argv); }
