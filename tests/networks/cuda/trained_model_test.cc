// A trained checkpoint on a GPU, beside the CPU in float32: OUTRIDER_TRAINED_MODEL names a folder that
// a trainer of tools/training wrote, of a family that the GPU runs. Skipped where it is not set: the
// repository has no room for one checkpoint of each family. Needs a GPU of compute capability 9.0,
// and cuDNN.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "outrider/networks/network_loader.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/logprob_errors.h"
#include "tests/networks/golden_file.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kBlock = 32;

using TrainedModelTest = HopperTest<>;

// The texts of the checkpoint's golden file, their first halves as prompts, in mixed steps.
TEST_F(TrainedModelTest, LogProbabilitiesBesideTheCpus) {
  const char* const named = std::getenv("OUTRIDER_TRAINED_MODEL");
  if (named == nullptr) GTEST_SKIP() << "OUTRIDER_TRAINED_MODEL names no checkpoint";
  const std::filesystem::path directory = named;
  const ModelConfig config = ReadModelConfig(directory);
  const auto source = OpenCheckpoint(directory, config);
  TestNetwork network(config, *source, 0);
  const GoldenFile golden(directory / "golden.safetensors");
  std::vector<KnownRequest> requests;
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    KnownRequest request;
    request.tokens = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    request.length = static_cast<int32_t>(request.tokens.size());
    request.prompt = request.length / 2;
    request.tokens.resize(request.tokens.size() + 4, 0);
    requests.push_back(std::move(request));
  }
  ASSERT_FALSE(requests.empty());
  std::mt19937 random(5);
  SpreadBlocks(random, requests, network.Groups(kBlock, DType::kBF16));
  CpuNetwork f32(config, *source, 0, DType::kF32, NumBlocks(requests), kBlock);
  KnownRun run(network, requests, kBlock, DType::kBF16);
  run.RunMixed(random, 90);
  BatchLayout layout(network.Groups(kBlock, DType::kF32));
  LogprobErrors errors;
  for (size_t i = 0; i < requests.size(); ++i) {
    const KnownRequest& request = requests[i];
    layout.Assign(std::vector{request.Work(0, 0, request.prompt, 0)});
    std::vector<float> hidden = f32.Forward(layout).back();
    layout.Assign(std::vector{request.Work(0, request.prompt, request.length - request.prompt, 0)});
    const std::vector<float> generated = f32.Forward(layout).back();
    hidden.insert(hidden.end(), generated.begin(), generated.end());
    const auto texts = std::span(request.tokens).first(static_cast<size_t>(request.length));
    errors.Judge(network.Logits(run.rows()[i][0]), f32.Logits(hidden),
                 static_cast<size_t>(config.vocab_size), texts.subspan(1),
                 fmt::format("case {}", i));
  }
  std::printf("worst log-probability: off by %.4f; %d near-ties\n", errors.worst, errors.near_ties);
}

}  // namespace
}  // namespace outrider::cuda
