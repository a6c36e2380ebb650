// What the adaptive number of drafts is worth beside each fixed one: engines that differ in nothing
// else answer the same prompts, a fixed number of them at a time, by turns of a tenth of a second
// of processor time. So all have the same machine, whose speed may double and halve meanwhile. One
// compute thread each. Prints Markdown; exit status 1 when the engines' answers differ.
//
//   draft_lengths_bench --prompts-file FILE [--model DIR] [--concurrency LIST] [--problems N]
//                       [--k LIST] [--lookup K]
//
// --lookup: drafts are looked up in the prompt; the adaptive engine has K at most.
// A number that is named twice has two engines, whose mean is compared: how far they are from each
// other is the scatter. docs/cli.md says how a prompts file is made.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/engine/engine.h"
#include "outrider/engine/engine_loader.h"
#include "outrider/measure/bench_load.h"
#include "outrider/measure/bench_report.h"
#include "tests/source_directory.h"

namespace outrider::bench {
namespace {

constexpr double kTurnSeconds = 0.1;
constexpr int32_t kMaxTokens = 128;
constexpr std::string_view kAdaptive = "adaptive";

struct Options {
  std::string model = SourceDirectory() / "models/tiny-v3-mtp3";
  std::string prompts_file;
  std::vector<std::string> concurrency = {"1", "8", "32", "128"};
  std::vector<std::string> k = {"0", "1", "2", "3", std::string(kAdaptive)};
  size_t problems = 1319;
  int32_t lookup = 0;  // 0: the model's own drafter
};

int32_t Number(std::string_view flag, std::string_view text, int32_t least) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least) {
    throw InvalidArgument("{}: '{}' is not a number from {} on", flag, text, least);
  }
  return number;
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// An engine and what it has done.
class Contender {
 public:
  Contender(const Options& options, std::string k) : k_(std::move(k)) {
    EngineOptions engine;
    engine.model = options.model;
    engine.num_threads = 1;
    engine.pin_threads = false;
    // With it a block is taken that was never written while there is one: first touches of memory
    // would take as long as what is compared, and longer without a drafter, whose cache has more.
    engine.enable_prefix_caching = false;
    if (options.lookup > 0) {
      engine.speculation.method = DraftMethod::kNgram;
      engine.speculation.num_speculative_tokens = options.lookup;
      engine.speculation.adaptive = k_ == kAdaptive;
    }
    if (k_ != kAdaptive) engine.speculation.num_speculative_tokens = Number("--k", k_, 0);
    loaded_ = LoadEngine(engine, nullptr);
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = kMaxTokens;
    auto prompts = EncodePromptsFile(loaded_, options.prompts_file);
    prompts.resize(std::min(prompts.size(), options.problems));
    requests_ = MakeRequests(prompts, static_cast<int32_t>(prompts.size()), sampling, /*seed=*/0);
    answers_.resize(requests_.size());
    seconds_by_depth_.resize(static_cast<size_t>(loaded_.num_speculative_tokens) + 1);
  }

  const std::string& k() const { return k_; }
  const std::vector<std::vector<int32_t>>& answers() const { return answers_; }
  bool Done() const { return finished_ == requests_.size(); }

  /// Steps for kTurnSeconds, or until all is answered.
  void Turn(size_t concurrency) {
    const double start = ProcessorSeconds();
    double last = start;
    while (!Done() && last - start < kTurnSeconds) {
      while (submitted_ < requests_.size() && submitted_ - finished_ < concurrency) Submit();
      loaded_.engine->Step();
      const double now = ProcessorSeconds();
      const auto depth = static_cast<size_t>(loaded_.engine->Counters().num_speculative_tokens);
      seconds_by_depth_.at(depth) += now - last;
      last = now;
    }
  }

  double TokensPerSecond() const {
    size_t tokens = 0;
    for (const auto& answer : answers_) tokens += answer.size();
    return static_cast<double>(tokens) / Seconds();
  }

  /// "0: 90 %, 1: 10 %": the shares of the time in steps that drafted so many tokens.
  std::string TimeByDepth() const {
    std::vector<std::string> shares;
    for (size_t i = 0; i < seconds_by_depth_.size(); ++i) {
      shares.push_back(fmt::format("{}: {:.1f} %", i, 100 * seconds_by_depth_[i] / Seconds()));
    }
    return fmt::format("{}", fmt::join(shares, ", "));
  }

 private:
  double Seconds() const { return std::reduce(seconds_by_depth_.begin(), seconds_by_depth_.end()); }

  void Submit() {
    const size_t index = submitted_++;
    loaded_.engine->Submit(requests_[index], [this, index](RequestId, OutputDelta&& delta) {
      answers_[index].insert(answers_[index].end(), delta.token_ids.begin(), delta.token_ids.end());
      if (delta.finish_reason) ++finished_;
    });
  }

  std::string k_;
  LoadedEngine loaded_;
  std::vector<GenerationRequest> requests_;
  std::vector<std::vector<int32_t>> answers_;
  std::vector<double> seconds_by_depth_;
  size_t submitted_ = 0;
  size_t finished_ = 0;
};

/// NaN of nothing.
double Mean(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

/// A dash where one of the two was not measured.
std::string Ratio(double a, double b) {
  return a > 0 && b > 0 ? fmt::format("{:.3f}", a / b) : "-";
}

/// Whether all gave the same answers.
bool Compare(const Options& options, size_t concurrency) {
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const std::string& k : options.k) {
    contenders.push_back(std::make_unique<Contender>(options, k));
  }
  const auto done = [](const auto& contender) { return contender->Done(); };
  while (!std::ranges::all_of(contenders, done)) {
    for (const auto& contender : contenders) contender->Turn(concurrency);
  }
  std::map<std::string, std::vector<double>> speeds;
  std::string row = fmt::format("| {} |", concurrency);
  for (const auto& contender : contenders) {
    speeds[contender->k()].push_back(contender->TokensPerSecond());
    row += fmt::format(" {:.0f} |", contender->TokensPerSecond());
  }
  double best = 0;
  for (const auto& [k, values] : speeds) {
    if (k != kAdaptive) best = std::max(best, Mean(values));
  }
  const double adaptive = Mean(speeds[std::string(kAdaptive)]);
  row += fmt::format(" {} | {} |", Ratio(adaptive, Mean(speeds["0"])), Ratio(adaptive, best));
  for (const auto& contender : contenders) {
    if (contender->k() == kAdaptive) row += fmt::format(" {} |", contender->TimeByDepth());
  }
  fmt::print("{}\n", row);
  std::fflush(stdout);
  return std::ranges::all_of(contenders, [&](const auto& contender) {
    return contender->answers() == contenders.front()->answers();
  });
}

std::vector<std::string> Split(std::string_view list) {
  std::vector<std::string> items;
  for (const auto item : std::views::split(list, ',')) items.emplace_back(item.begin(), item.end());
  return items;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--model") options.model = argv[i + 1];
    if (flag == "--prompts-file") options.prompts_file = argv[i + 1];
    if (flag == "--concurrency") options.concurrency = Split(argv[i + 1]);
    if (flag == "--problems") options.problems = static_cast<size_t>(Number(flag, argv[i + 1], 1));
    if (flag == "--k") options.k = Split(argv[i + 1]);
    if (flag == "--lookup") options.lookup = Number(flag, argv[i + 1], 1);
  }
  fmt::print("{}, {}, tokens per processor second\n\n| requests |", CpuName(),
             IsaName(SelectIsa()));
  for (const std::string& k : options.k) fmt::print(" k = {} |", k);
  fmt::print(" adaptive ÷ k = 0 | ÷ best | adaptive's time by drafts |\n|");
  for (size_t i = 0; i < options.k.size() + 4; ++i) fmt::print("---|");
  fmt::print("\n");
  bool same = true;
  for (const std::string& concurrency : options.concurrency) {
    same = Compare(options, static_cast<size_t>(Number("--concurrency", concurrency, 1))) && same;
  }
  if (!same) fmt::print("\nThe answers DIFFER.\n");
  return same ? 0 : 1;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  try {
    return outrider::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
