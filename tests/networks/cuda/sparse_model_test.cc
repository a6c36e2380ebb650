// The bundled model with an indexer, as a DeepSeek-V3.2, on a GPU, beside the CPU in float32. Needs
// a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "outrider/networks/network_loader.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kBlock = 64;

/// The bundled model, trained without an indexer, with one of random weights that chooses `top_k`
/// tokens. So many as most rows see leave it the model that it was; the last rows of the longest
/// text lose some.
class SparseTinyModel {
 public:
  explicit SparseTinyModel(int top_k) {
    const std::filesystem::path from = TinyModelDirectory();
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      std::filesystem::copy_file(entry.path(), directory() / entry.path().filename());
    }
    nlohmann::json config = Read("config.json");
    config["architectures"] = {"DeepseekV32ForCausalLM"};
    config["model_type"] = "deepseek_v32";
    config["index_n_heads"] = kHeads;
    config["index_head_dim"] = kDim;
    config["index_topk"] = top_k;
    const int64_t hidden = config["hidden_size"];
    const int64_t q_lora = config["q_lora_rank"];
    const int layers =
        config["num_hidden_layers"].get<int>() + config["num_nextn_predict_layers"].get<int>();
    for (int layer = 0; layer < layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.self_attn.indexer.", layer);
      Add(prefix + "wq_b.weight", {kHeads * kDim, q_lora});
      Add(prefix + "wk.weight", {kDim, hidden});
      Add(prefix + "k_norm.weight", {kDim});
      Add(prefix + "k_norm.bias", {kDim});
      Add(prefix + "weights_proj.weight", {kHeads, hidden});
    }
    nlohmann::json index = Read("model.safetensors.index.json");
    for (const testing::TensorToWrite& tensor : tensors_) {
      index["weight_map"][tensor.name] = "indexer.safetensors";
    }
    testing::WriteSafetensors(directory() / "indexer.safetensors", tensors_);
    std::ofstream(directory() / "config.json") << config;
    std::ofstream(directory() / "model.safetensors.index.json") << index;
  }

  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  static constexpr int64_t kHeads = 8;
  static constexpr int64_t kDim = 128;

  nlohmann::json Read(const char* name) const {
    std::ifstream file(directory() / name);
    return nlohmann::json::parse(file);
  }
  /// Norms are 1, their biases small, and products keep the size of what they multiply.
  void Add(const std::string& name, std::vector<int64_t> shape) {
    const bool norm = name.ends_with("k_norm.weight");
    const float width = shape.size() == 2 ? std::sqrt(3.0F / static_cast<float>(shape[1]))
                        : norm            ? 0.0F
                                          : 0.2F;
    std::uniform_real_distribution<float> values(-width, width);
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<uint16_t> numbers;
    for (int64_t i = 0; i < count; ++i) {
      numbers.push_back(ToBFloat16(norm ? 1.0F : values(random_)).bits);
    }
    tensors_.push_back({name, "BF16", std::move(shape), testing::Bytes(numbers)});
  }

  std::mt19937 random_{5};
  std::vector<testing::TensorToWrite> tensors_;
  TemporaryDirectory directory_;
};

using SparseModelTest = HopperTest<>;

// A row that sees no more tokens than are chosen reads all of them, and must be near. Of the others
// those whose choice is a near-tie may choose otherwise than the CPU, whose queries and keys are
// not rounded: a random indexer takes no account of what a token is worth, and so they may be far
// off. They are printed, and few.
TEST_F(SparseModelTest, LogProbabilitiesBesideTheCpus) {
  constexpr double kMost = 2e-2;
  constexpr int32_t kTopK = 768;
  const SparseTinyModel model(kTopK);
  const ModelConfig config = ReadModelConfig(model.directory());
  const auto source = OpenCheckpoint(model.directory(), config);
  TestNetwork network(config, *source, 0);
  const GoldenFile golden(GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors");
  const auto vocab = static_cast<size_t>(config.vocab_size);
  double worst = 0;
  int rows = 0, choosing = 0, other_choices = 0;
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    KnownRequest request;
    request.tokens = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    request.length = static_cast<int32_t>(request.tokens.size());
    request.tables = {FirstBlocks((request.length + kBlock - 1) / kBlock + 1)};
    request.tokens.resize(request.tokens.size() + 4, 0);
    std::vector<KnownRequest> requests = {request};
    CpuNetwork f32(config, *source, 0, DType::kF32, NumBlocks(requests), kBlock);
    BatchLayout layout(network.Groups(kBlock, DType::kF32));
    layout.Assign(std::vector{request.Work(0, 0, request.length, 0)});
    const std::vector<float> exact = f32.Logits(f32.Forward(layout).back());
    for (const bool prompt : {true, false}) {
      requests[0].prompt = prompt ? request.length : 0;
      KnownRun run(network, requests, kBlock, DType::kBF16);
      for (int32_t first = 0; first < request.length; first += 50) {
        run.Step({{0, first, std::min(50, request.length - first)}});
      }
      const std::vector<float> device = network.Logits(run.rows()[0][0]);
      ASSERT_EQ(device.size(), exact.size());
      for (int32_t r = 0; r + 1 < request.length; ++r) {
        const auto next = static_cast<size_t>(request.tokens[static_cast<size_t>(r) + 1]);
        const auto of = [&](const std::vector<float>& logits) {
          return LogSoftmax(std::span(logits).subspan(static_cast<size_t>(r) * vocab, vocab))[next];
        };
        const bool chooses = r >= kTopK;
        const double error = std::abs(of(device) - of(exact));
        ++rows;
        choosing += chooses ? 1 : 0;
        if (error < kMost) {
          worst = std::max(worst, error);
          continue;
        }
        EXPECT_TRUE(chooses) << "case " << c << ", row " << r << ": off by " << error;
        ++other_choices;
        std::printf("another choice: case %d %s, row %d: off by %.4f\n", c,
                    prompt ? "prompt" : "rows", r, error);
      }
    }
  }
  std::printf("%d rows, %d of which choose; worst log-probability: off by %.4f; %d other choices\n",
              rows, choosing, worst, other_choices);
  EXPECT_GT(choosing, 200);
  EXPECT_LE(other_choices, choosing / 10);
}

}  // namespace
}  // namespace outrider::cuda
