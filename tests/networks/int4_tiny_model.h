// A bundled model with its routed experts rounded to INT4, as Kimi-K2.5 publishes its own: groups
// of 32 columns, bf16 scales; all else is bfloat16. For devices that keep such codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/model_directory.h"
#include "tests/networks/quantized_checkpoint.h"

namespace outrider {

class Int4TinyModel : public ModelDirectory {
 public:
  explicit Int4TinyModel(const std::filesystem::path& from = TinyModelDirectory()) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      std::filesystem::copy_file(from / name, directory() / name);
    }
    nlohmann::json config = ReadJson(from / "config.json");
    config["quantization_config"] = nlohmann::json::parse(
        test_checkpoints::QuantizationConfig(test_checkpoints::StoredAs::kInt4));
    WriteConfig(config);
    const auto source = OpenCheckpoint(from, ReadModelConfig(from));
    std::vector<test_checkpoints::TensorToWrite> tensors;
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      if (entry.path().extension() != ".safetensors") continue;
      for (const TensorInfo& info : ReadSafetensorsHeader(entry.path())) {
        if (info.name.ends_with("_scale_inv")) continue;
        const auto tensor = source->Open({info.name, info.shape});
        std::vector<float> values(static_cast<size_t>(tensor->rows() * tensor->cols()));
        tensor->ReadRows(0, tensor->rows(), values.data());
        if (info.name.find(".mlp.experts.") != std::string::npos) {
          AddInt4(info, values, tensors);
        } else if (info.dtype == DType::kF32) {
          tensors.push_back({info.name, "F32", info.shape, test_checkpoints::Bytes(values)});
        } else {
          std::vector<uint16_t> narrow;
          for (const float value : values) narrow.push_back(ToBFloat16(value).bits);
          tensors.push_back({info.name, "BF16", info.shape, test_checkpoints::Bytes(narrow)});
        }
      }
    }
    test_checkpoints::WriteSafetensors(directory() / "model.safetensors", tensors);
  }

 private:
  static void AddInt4(const TensorInfo& info, const std::vector<float>& values,
                      std::vector<test_checkpoints::TensorToWrite>& tensors) {
    std::vector<uint32_t> words(values.size() / 8, 0);
    std::vector<uint16_t> scales;
    for (size_t first = 0; first < values.size(); first += kInt4Group) {
      float largest = 1e-6F;
      for (size_t i = first; i < first + kInt4Group; ++i) {
        largest = std::max(largest, std::fabs(values[i]));
      }
      const BFloat16 scale = ToBFloat16(largest / 7);
      scales.push_back(scale.bits);
      for (size_t i = first; i < first + kInt4Group; ++i) {
        const float code = std::clamp(std::nearbyint(values[i] / ToFloat(scale)), -8.0F, 7.0F);
        words[i / 8] |= static_cast<uint32_t>(code + 8) << (4 * (i % 8));
      }
    }
    const std::string base = info.name.substr(0, info.name.size() - std::string(".weight").size());
    const int64_t rows = info.shape[0];
    const int64_t cols = info.shape[1];
    tensors.push_back(
        {base + ".weight_packed", "I32", {rows, cols / 8}, test_checkpoints::Bytes(words)});
    tensors.push_back({base + ".weight_scale",
                       "BF16",
                       {rows, cols / kInt4Group},
                       test_checkpoints::Bytes(scales)});
    tensors.push_back({base + ".weight_shape",
                       "I64",
                       {2},
                       test_checkpoints::Bytes(std::vector<int64_t>{rows, cols})});
  }
};

}  // namespace outrider
