// A small network of DeepSeek-V4 on a GPU, with random weights: each layer beside the CPU's, bits
// in one step and in many. It is loaded whether or not an engine starts with it. Needs a GPU of
// compute capability 9.0.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/cuda/layers_beside_cpu.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {
namespace {

/// Layers of a window, of ratio 4 with an indexer and of ratio 128, experts by token and by choice,
/// an MTP module. bf16 weights.
ModelConfig ConfigOf(int64_t heads) {
  ModelConfig c = ReadModelConfig(TinyV4Directory());
  c.quantization = {};
  for (LayerSpec& layer : c.layers) std::get<CompressedSpec>(layer.attention).heads = heads;
  std::get<CompressedSpec>(c.mtp_layer.attention).heads = heads;
  return c;
}

class V4Test : public HopperTest<testing::TestWithParam<int64_t>> {};

// An indexer's or router's choice may differ from the CPU's in near-ties, which moves the row's
// output: such a row counts as one that is far off.
TEST_P(V4Test, EveryLayerBesideTheCpus) {
  const ModelConfig config = ConfigOf(GetParam());
  const RoundedQueriesOps rounded_queries;
  ExpectLayersBesideCpu({.config = config,
                         .source = *MakeDummyWeights(config, 3),
                         .block = 128,
                         .long_prompt = 600,
                         .first_chunk = 390,
                         .rounded_ops = rounded_queries});
}

TEST_P(V4Test, BitsDoNotDependOnTheStep) {
  const ModelConfig config = ConfigOf(GetParam());
  TestNetwork network(config, *MakeDummyWeights(config, 3), 1);
  const auto vocab = static_cast<int32_t>(config.vocab_size);
  std::mt19937 random(7);
  std::vector<KnownRequest> requests =
      RandomRequests(random, vocab, {1, 65, 130, 400}, 12, network.Groups(128, DType::kBF16));
  KnownRun alone(network, requests, 128, DType::kBF16);
  alone.RunAlone();
  SpreadBlocks(random, requests, network.Groups(256, DType::kBF16));
  KnownRun mixed(network, requests, 256, DType::kBF16);
  mixed.RunMixed(random, 150);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t kind = 0; kind < 2; ++kind) {
      EXPECT_EQ(alone.rows()[i][kind], mixed.rows()[i][kind]) << "request " << i << ", " << kind;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, V4Test, testing::Values(8, 64, 128),
                         [](const auto& test) { return "heads" + std::to_string(test.param); });

}  // namespace
}  // namespace outrider::cuda
