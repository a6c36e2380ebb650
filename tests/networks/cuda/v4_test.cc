// A small network of DeepSeek-V4 on a GPU, with random weights: each layer beside the CPU's, bits
// in one step and in many. It is loaded whether or not an engine starts with it. Needs a GPU of
// compute capability 9.0.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
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

/// The CPU's operations with an indexer's queries rounded to bfloat16, before and after their
/// rotation, as the GPU holds them. Each rounding adds near-ties of the choice.
class RoundedQueriesOps : public cpu::CpuOps {
 public:
  RoundedQueriesOps() : CpuOps(GetKernels(SelectIsa())) {}

  void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
              const Rotary& rotary) const override {
    if (heads > 1) Round(x);
    CpuOps::Rotate(context, x, heads, offset, rotary);
  }
  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    Round(args.q);
    return CpuOps::SelectEntries(context, inputs, args);
  }

 private:
  static void Round(Tensor x) {
    const MatrixView<float> rows = x.floats();
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t i = 0; i < rows.cols; ++i) rows.row(r)[i] = RoundToBFloat16(rows.row(r)[i]);
    }
  }
};

// An indexer's or router's choice may differ from the CPU's in near-ties, which moves the row's
// output: such a row counts as one that is far off.
TEST_P(V4Test, EveryLayerBesideTheCpus) {
  constexpr int32_t kBlock = 128;
  const ModelConfig config = ConfigOf(GetParam());
  const auto source = MakeDummyWeights(config, 3);
  std::mt19937 random(2);
  TestNetwork network(config, *source, 1);
  const auto vocab = static_cast<int32_t>(config.vocab_size);
  const std::vector<KnownRequest> requests =
      RandomRequests(random, vocab, {70, 600, 3}, 40, network.Groups(kBlock, DType::kBF16));
  const int32_t blocks = NumBlocks(requests);
  CpuNetwork f32(config, *source, 1, DType::kF32, blocks, kBlock);
  const RoundedQueriesOps rounded_queries;
  CpuNetwork bf16(config, *source, 1, DType::kBF16, blocks, kBlock, rounded_queries);
  KvCache cache = network.MakeCache(blocks, kBlock, DType::kBF16);
  BatchLayout layout(cache.config().groups);
  // Prompts; then generated rows of two requests beside the rest of another's prompt.
  const std::vector<std::vector<Piece>> steps = {{{0, 0, 70}, {1, 0, 390}, {2, 0, 3}},
                                                 {{0, 70, 40}, {1, 390, 210}, {2, 3, 40}}};
  for (const std::vector<Piece>& pieces : steps) {
    const auto assign = [&](int32_t shift) {
      std::vector<RequestWork> work;
      for (const Piece& piece : pieces) {
        work.push_back(requests[piece.request].Work(static_cast<int32_t>(piece.request),
                                                    piece.first, piece.count, shift));
      }
      layout.Assign(work);
    };
    assign(0);
    const std::vector<std::vector<float>> exact = f32.Forward(layout);
    const std::vector<std::vector<float>> rounded = bf16.Forward(layout);
    network.Forward(layout, cache, [&](int64_t layer, const std::vector<float>& got) {
      const auto i = static_cast<size_t>(layer);
      ExpectAsNear(got, rounded[i], exact[i], config.hidden_size, fmt::format("layer {}", layer));
    });
    // The module goes on from the same rows, which bfloat16 holds.
    std::vector<uint16_t> previous;
    std::vector<float> same;
    for (const float x : exact.back()) {
      previous.push_back(ToBFloat16(x).bits);
      same.push_back(RoundToBFloat16(x));
    }
    assign(1);
    std::vector<float> got;
    for (const uint16_t bits : network.ForwardMtp(0, layout, cache, previous)) {
      got.push_back(ToFloat(BFloat16{bits}));
    }
    ExpectAsNear(got, bf16.ForwardMtp(0, layout, same), f32.ForwardMtp(0, layout, same),
                 network.output_width(), "the module");
  }
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
