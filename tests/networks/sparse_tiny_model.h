// The bundled model with an indexer of random weights, as a DeepSeek-V3.2, for tests.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/dtype.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/model_directory.h"

namespace outrider {

/// The bundled model, trained without an indexer, with one of random weights that chooses `top_k`
/// tokens. So many as most rows see leave it the model that it was; the last rows of the longest
/// text lose some.
class SparseTinyModel : public ModelDirectory {
 public:
  explicit SparseTinyModel(int top_k) {
    const std::filesystem::path from = TinyModelDirectory();
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      std::filesystem::copy_file(entry.path(), directory() / entry.path().filename());
    }
    nlohmann::json config = ReadJson(directory() / "config.json");
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
    nlohmann::json index = ReadJson(directory() / "model.safetensors.index.json");
    for (const test_checkpoints::TensorToWrite& tensor : tensors_) {
      index["weight_map"][tensor.name] = "indexer.safetensors";
    }
    test_checkpoints::WriteSafetensors(directory() / "indexer.safetensors", tensors_);
    WriteConfig(config);
    std::ofstream(directory() / "model.safetensors.index.json") << index;
  }

 private:
  static constexpr int64_t kHeads = 8;
  static constexpr int64_t kDim = 128;

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
    tensors_.push_back({name, "BF16", std::move(shape), test_checkpoints::Bytes(numbers)});
  }

  std::mt19937 random_{5};
  std::vector<test_checkpoints::TensorToWrite> tensors_;
};

}  // namespace outrider
