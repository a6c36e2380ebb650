// Compares DeepSeek-V4 checkpoints with the golden file in their directories
// (random_deepseek_v4_test.py makes them): the whole prompt at once, in chunks, and token after
// token with wrong drafts behind. Prints a line for each; exit status 1 when a log-probability
// differs by 1e-3.
//
//   deepseek_v4_golden_check DIRECTORY...
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <vector>

#include "outrider/base/error.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

struct GoldenRun {
  Phase phase = Phase::kPromptChunk;
  int32_t chunk = 1 << 20;
  int32_t wrong_drafts = 0;
};

double LargestLogProbDifference(const std::vector<float>& got, const std::vector<float>& want,
                                int64_t vocab) {
  double worst = 0;
  for (size_t first = 0; first < want.size(); first += static_cast<size_t>(vocab)) {
    const auto log_sum = [&](const std::vector<float>& logits) {
      double sum = 0;
      for (size_t i = 0; i < static_cast<size_t>(vocab); ++i) {
        sum += std::exp(double{logits[first + i]});
      }
      return std::log(sum);
    };
    const double shift = log_sum(got) - log_sum(want);
    for (size_t i = first; i < first + static_cast<size_t>(vocab); ++i) {
      const double difference = std::fabs(got[i] - want[i] - shift);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
  }
  return worst;
}

double Compare(const std::filesystem::path& directory, const GoldenRun& run) {
  const GoldenFile golden(directory / "golden.safetensors");
  const auto ids = golden.Read<int32_t>("case0.ids");
  const auto want = golden.Read<float>("case0.logits");
  const LoadedModel loaded(directory, DType::kF32, SelectIsa(), 2, KvCacheForm::kHeads);
  Network& network = *loaded.model;
  const auto length = static_cast<int32_t>(ids.size());
  KvCache cache = loaded.MakeCache(1000, 8);
  std::vector<std::vector<int32_t>> tables;
  int32_t page = 0;
  for (const CacheGroupSpec& group : cache.config().groups) {
    tables.emplace_back(static_cast<size_t>(group.BlocksBefore(length + run.wrong_drafts)));
    for (int32_t& entry : tables.back()) entry = page++;
  }
  OUTRIDER_CHECK(page <= cache.config().num_pages);
  const std::vector<int32_t> wrong(static_cast<size_t>(run.wrong_drafts), 3);
  const int64_t width = network.output_width();
  std::vector<float> hidden(static_cast<size_t>((length + run.wrong_drafts) * width));
  BatchLayout layout(cache.config().groups);
  for (int32_t first = 0; first < length; first += run.chunk) {
    const int32_t count = std::min(run.chunk, length - first);
    layout.Assign(std::vector{RequestWork{
        .phase = run.phase,
        .context_length = first,
        .tokens = std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
        .draft_tokens = wrong,
        .samples = run.phase == Phase::kDecode,
        .block_tables = tables}});
    network.Forward(layout, cache, Tensor(hidden.data() + first * width, layout.num_rows(), width));
  }
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> got(want.size());
  network.Logits(Network::kTarget, Tensor(hidden.data(), length, width), rows,
                 Tensor(got.data(), length, network.vocab_size()));
  return LargestLogProbDifference(got, want, network.vocab_size());
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using outrider::Phase;
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      double worst = 0;
      for (const outrider::GoldenRun& run :
           {outrider::GoldenRun{}, {Phase::kPromptChunk, 13}, {Phase::kDecode, 1, 3}}) {
        worst = std::max(worst, outrider::Compare(argv[i], run));
      }
      fmt::print("{}: {:.1e}\n", argv[i], worst);
      if (!(worst < 1e-3)) status = 1;
    } catch (const outrider::Error& error) {
      fmt::print("{}\n", error.what());
      status = 1;
    }
  }
  return status;
}
