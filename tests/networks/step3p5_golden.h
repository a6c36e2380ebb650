// A Step-3.5 checkpoint beside what tools/step3p5_reference.py computes with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {

/// Logarithms of probabilities of rows of logits [rows, vocab].
inline std::vector<double> LogProbabilities(const std::vector<float>& logits, int64_t vocab) {
  std::vector<double> result(logits.begin(), logits.end());
  for (size_t row = 0; row < result.size(); row += static_cast<size_t>(vocab)) {
    const auto begin = result.begin() + static_cast<int64_t>(row);
    const auto end = begin + vocab;
    const double largest = *std::max_element(begin, end);
    double sum = 0;
    for (auto i = begin; i != end; ++i) sum += std::exp(*i - largest);
    for (auto i = begin; i != end; ++i) *i -= largest + std::log(sum);
  }
  return result;
}

/// How the prompt is run.
struct StepGoldenRun {
  Phase phase = Phase::kPromptChunk;
  int32_t chunk = 1000;
  int32_t block_size = 4;
};

/// Runs a case of the golden file through the target and all modules, with a page for every block.
class Step3p5Golden {
 public:
  explicit Step3p5Golden(const std::filesystem::path& directory, DType dtype = DType::kF32)
      : golden_(directory / "golden.safetensors"),
        dtype_(dtype),
        loaded_(directory, dtype, SelectIsa(), 1, KvCacheForm::kHeads) {}

  Network& network() { return *loaded_.model; }
  int num_cases() const {
    int cases = 0;
    while (golden_.Has(fmt::format("case{}.ids", cases))) ++cases;
    return cases;
  }

  /// The largest difference of a log-probability, of the target and of the modules.
  double LargestDifference(int golden_case, const StepGoldenRun& run) {
    const std::vector<std::vector<float>> logits = Logits(golden_case, run);
    double worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const std::string tensor = i == 0 ? "logits" : fmt::format("mtp{}.logits", i - 1);
      worst = std::max(worst, Difference(fmt::format("case{}.{}", golden_case, tensor), logits[i]));
    }
    return worst;
  }

  /// Logits at every position, of the target and then of each module.
  std::vector<std::vector<float>> Logits(int golden_case, const StepGoldenRun& run) {
    const std::string name = fmt::format("case{}.", golden_case);
    const auto ids = golden_.Read<int32_t>(name + "ids");
    const auto length = static_cast<int32_t>(ids.size());
    const NetworkCache needs = network().cache_needs();
    CacheConfig config = MakeCacheConfig(needs, dtype_, run.block_size, 1);
    std::vector<std::vector<int32_t>> tables;
    config.num_pages = 0;
    for (const CacheGroupSpec& group : config.groups) {
      tables.emplace_back(static_cast<size_t>(group.BlocksBefore(length)));
      std::iota(tables.back().begin(), tables.back().end(), config.num_pages);
      config.num_pages += group.BlocksBefore(length);
    }
    KvCache cache(network().device(), config, needs.layers, dtype_);
    BatchLayout layout(config.groups);
    std::vector<float> hidden(ids.size() * static_cast<size_t>(network().hidden_size()));
    const MatrixView<float> rows(hidden.data(), length, network().hidden_size());
    const auto assign = [&](int32_t first, int32_t count, int32_t shift) {
      layout.Assign(std::vector{
          RequestWork{.slot = 0,
                      .phase = run.phase,
                      .context_length = first,
                      .tokens = std::span(ids).subspan(static_cast<size_t>(first + shift),
                                                       static_cast<size_t>(count)),
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = tables}});
    };
    for (int32_t first = 0; first < length; first += run.chunk) {
      const int32_t count = std::min(run.chunk, length - first);
      assign(first, count, 0);
      network().Forward(layout, cache, rows.Rows(first, count));
    }
    std::vector<std::vector<float>> logits = {LogitsOf(Network::kTarget, rows)};
    for (int32_t m = 0; m < network().num_mtp_modules(); ++m) {
      const int32_t end = length - 1 - m;
      for (int32_t first = 0; first < end; first += run.chunk) {
        const int32_t count = std::min(run.chunk, end - first);
        assign(first, count, m + 1);
        network().ForwardMtp(m, layout, cache, rows.Rows(first, count), rows.Rows(first, count));
      }
      logits.push_back(LogitsOf(m, rows.Rows(0, end)));
    }
    return logits;
  }

 private:
  std::vector<float> LogitsOf(int32_t module, MatrixView<float> rows) {
    std::vector<int32_t> all(static_cast<size_t>(rows.rows));
    std::iota(all.begin(), all.end(), 0);
    const int64_t vocab = network().vocab_size();
    std::vector<float> logits(all.size() * static_cast<size_t>(vocab));
    network().Logits(module, rows, all, MatrixView<float>(logits.data(), rows.rows, vocab));
    return logits;
  }

  double Difference(const std::string& name, const std::vector<float>& logits) const {
    const int64_t vocab = loaded_.model->vocab_size();
    const std::vector<double> got = LogProbabilities(logits, vocab);
    const std::vector<double> want = LogProbabilities(golden_.Read<float>(name), vocab);
    OUTRIDER_CHECK(got.size() == want.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double difference = std::fabs(got[i] - want[i]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    return worst;
  }

  GoldenFile golden_;
  DType dtype_;
  LoadedModel loaded_;
};

}  // namespace outrider
