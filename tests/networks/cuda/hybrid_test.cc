// Small networks of linear and latent attention on a GPU, with random weights: each layer beside
// the CPU's, bits in one step and in many. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/layers_beside_cpu.h"
#include "tests/networks/small_hybrid_model.h"

namespace outrider::cuda {
namespace {

// Its pages have to hold pieces of states.
constexpr int32_t kBlock = 256;

struct Family {
  const char* name;
  nlohmann::json (*config)(int32_t vocab_size);
  int modules;
};

class HybridTest : public HopperTest<testing::TestWithParam<Family>> {
 protected:
  static ModelConfig Config() {
    const ModelDirectory model(WithGpuHeads(GetParam().config(1000)));
    return ReadModelConfig(model.directory());
  }
};

// A router's choice may differ from the CPU's in near-ties, which moves the row's output: such a
// row counts as one that is far off. The running state carries it, and every rounding, to the rows
// of the request behind it: as many as 40 generated ones. So which rows are near-ties decides how
// far a step's are off, and rows of several models are counted together.
TEST_P(HybridTest, EveryLayerBesideTheCpus) {
  const ModelConfig config = Config();
  ErrorsOfLayers errors;
  for (const uint64_t seed : {3, 4, 5}) {
    AddErrorsOfLayers({.config = config,
                       .source = *MakeDummyWeights(config, seed),
                       .modules = GetParam().modules,
                       .block = kBlock},
                      errors);
  }
  for (const auto& [what, of_rows] : errors) {
    ExpectAsNear(of_rows, what, {.median = 2, .far_more = 40});
  }
}

TEST_P(HybridTest, BitsDoNotDependOnTheStep) {
  const ModelConfig config = Config();
  TestNetwork network(config, *MakeDummyWeights(config, 3), GetParam().modules);
  std::mt19937 random(7);
  std::vector<KnownRequest> requests =
      RandomRequests(random, static_cast<int32_t>(config.vocab_size), {1, 16, 65, 130, 400}, 40,
                     network.Groups(kBlock, DType::kBF16));
  const CacheConfig cache = network.ConfigOfCache(kBlock, DType::kBF16);
  SpreadStates(random, requests, cache);
  KnownRun alone(network, requests, kBlock, DType::kBF16);
  alone.RunAlone();
  SpreadBlocks(random, requests, cache.groups);
  for (KnownRequest& request : requests) request.state = {};
  SpreadStates(random, requests, cache);
  KnownRun mixed(network, requests, kBlock, DType::kBF16);
  mixed.RunMixed(random, 150);
  ExpectEqualRows(mixed, alone);
}

INSTANTIATE_TEST_SUITE_P(Families, HybridTest,
                         testing::Values(Family{"ling", SmallLingConfig, 1},
                                         Family{"ling_fp4", SmallFp4LingConfig, 1},
                                         Family{"kimi", SmallKimiConfig, 0}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider::cuda
