// The bundled model with an indexer, as a DeepSeek-V3.2, on a GPU, beside the CPU in float32 that
// reads the entries that the GPU chose. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "outrider/networks/network_loader.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/near_ties.h"
#include "tests/networks/recorded_choices.h"
#include "tests/networks/rounded_queries_ops.h"
#include "tests/networks/sparse_tiny_model.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kBlock = 64;

using SparseModelTest = HopperTest<>;

/// The golden texts of the bundled model, as requests of their own.
std::vector<KnownRequest> GoldenRequests() {
  const GoldenFile golden(GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors");
  std::vector<KnownRequest> requests;
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    KnownRequest& request = requests.emplace_back();
    request.tokens = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    request.length = static_cast<int32_t>(request.tokens.size());
    request.tables = {FirstBlocks((request.length + kBlock - 1) / kBlock + 1)};
    request.tokens.resize(request.tokens.size() + 4, 0);
  }
  return requests;
}

/// A request on the GPU: its logits, and what it chose.
std::vector<float> RunOnGpu(const ModelConfig& config, const WeightSource& source,
                            const KnownRequest& request, const CacheNumbers& cache,
                            ChoiceLog& log) {
  TestNetwork network(config, source, 0, std::make_unique<RecordingOps<CudaOps>>(log));
  const std::vector<KnownRequest> requests = {request};
  KnownRun run(network, requests, kBlock, cache);
  for (int32_t first = 0; first < request.length; first += 50) {
    log.BeginPass(first);
    run.Step({{0, first, std::min(50, request.length - first)}});
  }
  return network.Logits(run.rows()[0][0]);
}

/// A request on a CPU that reads what the GPU chose: its logits.
template <typename Base>
std::vector<float> RunOnCpu(const ModelConfig& config, const WeightSource& source,
                            const KnownRequest& request, DType dtype, const ChoiceLog& others,
                            ChoiceLog& log) {
  const FollowingOps<Base> ops(log, others);
  CpuNetwork network(config, source, 0, dtype, NumBlocks({request}), kBlock, ops);
  BatchLayout layout(network.cache_config().groups);
  log.BeginPass(0);
  layout.Assign(std::vector{request.Work(0, 0, request.length, 0)});
  return network.Logits(network.Forward(layout).back());
}

// Where the GPU chooses other entries than the CPU would, whose queries and keys are not rounded,
// these are near-ties by the scores of both (near_ties.h). The smaller choice has more of them.
TEST_F(SparseModelTest, ChoicesAreThoseOfTheHighestScores) {
  for (const int32_t top_k : {768, 96}) {
    const SparseTinyModel model(top_k);
    const ModelConfig config = ReadModelConfig(model.directory());
    const auto source = OpenCheckpoint(model.directory(), config);
    int64_t choosing = 0;
    for (KnownRequest request : GoldenRequests()) {
      if (request.length <= top_k) continue;
      for (const bool prompt : {true, false}) {
        request.prompt = prompt ? request.length : 0;
        const std::string what =
            fmt::format("top {} of {} as {}", top_k, request.length, prompt ? "a prompt" : "rows");
        ChoiceLog device(request.tables[0]);
        RunOnGpu(config, *source, request, DType::kBF16, device);
        ChoiceLog exact(request.tables[0]);
        RunOnCpu<ExactOps>(config, *source, request, DType::kF32, device, exact);
        const ChoiceReport own = CheckHighestChosen(device, HopperBf16DotBound());
        own.Print(what + ", by what it was given");
        EXPECT_EQ(own.problem, "") << what;
        const ChoiceReport both = CheckNearChoices(device, exact, HopperBf16DotBound());
        both.Print(what + ", beside float32");
        EXPECT_EQ(both.problem, "") << what;
        EXPECT_LE(both.far_scores, both.scores / 100) << what;
        choosing += both.rows;
      }
    }
    EXPECT_GT(choosing, 200);
  }
}

// Beside a CPU in float32 that reads the entries that the GPU chose, so that no row is exempt. Rows
// that lose entries to a random indexer are not what the model was trained on, and hang on
// near-ties of experts: they have to be as near as those of a CPU whose numbers are rounded as the
// GPU's.
TEST_F(SparseModelTest, LogProbabilitiesBesideTheCpus) {
  constexpr double kMost = 2e-2;
  constexpr int32_t kTopK = 768;
  const SparseTinyModel model(kTopK);
  const ModelConfig config = ReadModelConfig(model.directory());
  const auto source = OpenCheckpoint(model.directory(), config);
  const auto vocab = static_cast<size_t>(config.vocab_size);
  double worst = 0;
  int choosing = 0;
  for (KnownRequest request : GoldenRequests()) {
    for (const bool prompt : {true, false}) {
      request.prompt = prompt ? request.length : 0;
      ChoiceLog choices(request.tables[0]);
      const std::vector<float> device = RunOnGpu(config, *source, request, DType::kBF16, choices);
      ChoiceLog unused(request.tables[0]);
      const std::vector<float> exact =
          RunOnCpu<ExactOps>(config, *source, request, DType::kF32, choices, unused);
      const std::vector<float> rounded =
          RunOnCpu<RoundedQueriesOps>(config, *source, request, DType::kBF16, choices, unused);
      ASSERT_EQ(device.size(), exact.size());
      int far = 0, far_rounded = 0;
      double worst_choosing = 0, worst_rounded = 0;
      for (int32_t r = 0; r + 1 < request.length; ++r) {
        const auto next = static_cast<size_t>(request.tokens[static_cast<size_t>(r) + 1]);
        const auto error_of = [&](const std::vector<float>& logits) {
          const auto of = [&](const std::vector<float>& all) {
            return LogSoftmax(std::span(all).subspan(static_cast<size_t>(r) * vocab, vocab))[next];
          };
          return std::abs(of(logits) - of(exact));
        };
        const double error = error_of(device);
        if (r < kTopK) {
          EXPECT_LT(error, kMost) << request.length << " tokens, row " << r;
          worst = std::max(worst, error);
          continue;
        }
        ++choosing;
        far += error < kMost ? 0 : 1;
        far_rounded += error_of(rounded) < kMost ? 0 : 1;
        worst_choosing = std::max(worst_choosing, error);
        worst_rounded = std::max(worst_rounded, error_of(rounded));
      }
      if (request.length <= kTopK) continue;
      std::printf(
          "%d tokens, rows that choose: %d off by %.2f or more, a rounded CPU's %d; "
          "furthest %.4f, the CPU's %.4f\n",
          request.length, far, kMost, far_rounded, worst_choosing, worst_rounded);
      EXPECT_LE(far, far_rounded + far_rounded / 2 + 2);
      EXPECT_LT(worst_choosing, std::max(kMost, 2 * worst_rounded));
    }
  }
  std::printf("rows that see no more than they choose: off by %.4f at most\n", worst);
  EXPECT_GT(choosing, 200);
}

TEST_F(SparseModelTest, KeysInEightBitsAreChosenByTheRoundedNumbers) {
  const SparseTinyModel model(96);
  const ModelConfig config = ReadModelConfig(model.directory());
  const auto source = OpenCheckpoint(model.directory(), config);
  int64_t choosing = 0;
  for (KnownRequest request : GoldenRequests()) {
    request.prompt = request.length / 2 / 50 * 50;
    ChoiceLog log(request.tables[0]);
    RunOnGpu(config, *source, request, DType::kF8E4M3, log);
    const ChoiceReport own = CheckHighestChosen(log, HopperE4m3DotBound());
    own.Print(fmt::format("{} tokens, keys in 8 bits", request.length));
    EXPECT_EQ(own.problem, "");
    choosing += own.rows;
  }
  EXPECT_GT(choosing, 200);
}

}  // namespace
}  // namespace outrider::cuda
