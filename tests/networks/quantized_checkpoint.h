// Weights in the formats of compressed-tensors and ModelOpt, written for tests, and what they stand
// for in float64.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "tests/checkpoint/checkpoint_writer.h"

namespace outrider::test_checkpoints {

enum class StoredAs {
  kInt4,      // groups of 32 columns
  kInt4Of64,  // groups of 64
  kNvfp4,     // compressed-tensors
  kNvfp4ModelOpt,
  kMxfp4,
  kFp8Tensor,
  kFp8Row,
  kFp8Block,  // weight_scale of blocks of 128 x 128
};

inline constexpr StoredAs kAllStored[] = {
    StoredAs::kInt4,  StoredAs::kInt4Of64,  StoredAs::kNvfp4,  StoredAs::kNvfp4ModelOpt,
    StoredAs::kMxfp4, StoredAs::kFp8Tensor, StoredAs::kFp8Row, StoredAs::kFp8Block};

inline std::string NameOf(StoredAs stored) {
  constexpr const char* kNames[] = {"int4",  "int4_of_64", "nvfp4",   "nvfp4_modelopt",
                                    "mxfp4", "fp8_tensor", "fp8_row", "fp8_block"};
  return kNames[static_cast<size_t>(stored)];
}

inline void PrintTo(StoredAs stored, std::ostream* out) { *out << NameOf(stored); }

/// A matrix [rows, cols]: the tensors of NAME, and its values.
struct QuantizedMatrix {
  std::vector<TensorToWrite> tensors;
  std::vector<double> values;
};

/// A random one whose values have about the given standard deviation. With a checkpoint's
/// input_scale and the like where such files have them.
inline QuantizedMatrix RandomQuantized(StoredAs stored, const std::string& name, int64_t rows,
                                       int64_t cols, double deviation, std::mt19937& random) {
  QuantizedMatrix matrix;
  const auto size = static_cast<size_t>(rows * cols);
  matrix.values.resize(size);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto add = [&](const std::string& part, const char* dtype, std::vector<int64_t> shape,
                       std::string data) {
    matrix.tensors.push_back({name + part, dtype, std::move(shape), std::move(data)});
  };
  constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (stored == StoredAs::kInt4 || stored == StoredAs::kInt4Of64) {
    const int64_t group = stored == StoredAs::kInt4 ? 32 : 64;
    std::vector<uint32_t> words(size / 8);
    std::vector<uint16_t> scales(size / static_cast<size_t>(group));
    for (uint32_t& word : words) word = random();
    for (uint16_t& scale : scales) {
      scale = ToBFloat16(static_cast<float>(deviation / 4.6 * uniform(0.5, 1.5))).bits;
    }
    for (size_t i = 0; i < size; ++i) {
      const int code = static_cast<int>(words[i / 8] >> (4 * (i % 8)) & 15) - 8;
      matrix.values[i] =
          code * static_cast<double>(ToFloat(BFloat16{scales[i / static_cast<size_t>(group)]}));
    }
    add(".weight_packed", "I32", {rows, cols / 8}, Bytes(words));
    add(".weight_scale", "BF16", {rows, cols / group}, Bytes(scales));
    add(".weight_shape", "I64", {2}, Bytes(std::vector<int64_t>{rows, cols}));
    return matrix;
  }
  if (stored == StoredAs::kNvfp4 || stored == StoredAs::kNvfp4ModelOpt ||
      stored == StoredAs::kMxfp4) {
    const bool mx = stored == StoredAs::kMxfp4;
    const int64_t group = mx ? 32 : 16;
    std::vector<uint8_t> pairs(size / 2);
    std::vector<uint8_t> scales(size / static_cast<size_t>(group));
    for (uint8_t& pair : pairs) pair = static_cast<uint8_t>(random());
    const int exponent = static_cast<int>(std::round(std::log2(deviation / 2.9)));
    for (uint8_t& scale : scales) {
      scale = mx ? static_cast<uint8_t>(127 + exponent + static_cast<int>(random() % 2))
                 : static_cast<uint8_t>(0x38 + random() % 16);  // 1 to 3.75
    }
    // compressed-tensors divides by what ModelOpt multiplies with.
    const auto factor = static_cast<float>(deviation / 6 * uniform(0.5, 1.5));
    const float inverse = 1 / factor;
    const double global = mx                           ? 1
                          : stored == StoredAs::kNvfp4 ? static_cast<double>(1 / inverse)
                                                       : static_cast<double>(factor);
    for (size_t i = 0; i < size; ++i) {
      const int code = i % 2 == 0 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4;
      const uint8_t scale = scales[i / static_cast<size_t>(group)];
      const double scaled =
          mx ? std::ldexp(1, scale - 127)
             : std::ldexp(8 + (scale & 7), (scale >> 3) - 10);  // (1 + m / 8) 2^(e - 7)
      matrix.values[i] = kE2m1[code & 7] * (code >= 8 ? -1 : 1) * scaled * global;
    }
    const bool modelopt = stored == StoredAs::kNvfp4ModelOpt;
    add(modelopt ? ".weight" : ".weight_packed", "U8", {rows, cols / 2}, Bytes(pairs));
    add(".weight_scale", mx ? "U8" : "F8_E4M3", {rows, cols / group}, Bytes(scales));
    if (modelopt) {
      add(".weight_scale_2", "F32", {}, Bytes(std::vector<float>{factor}));
      add(".input_scale", "F32", {}, Bytes(std::vector<float>{0.01F}));
    } else if (!mx) {
      add(".weight_global_scale", "F32", {1}, Bytes(std::vector<float>{inverse}));
      add(".input_global_scale", "F32", {1}, Bytes(std::vector<float>{100}));
    }
    return matrix;
  }
  std::vector<uint8_t> codes(size);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(0x28 + random() % 0x18 + (random() % 2 == 0 ? 0x80 : 0));
  }
  const int64_t block_rows = stored == StoredAs::kFp8Row     ? 1
                             : stored == StoredAs::kFp8Block ? 128
                                                             : rows;
  const int64_t block_cols = stored == StoredAs::kFp8Block ? 128 : cols;
  const std::vector<int64_t> blocks = {(rows + block_rows - 1) / block_rows,
                                       (cols + block_cols - 1) / block_cols};
  std::vector<float> scales(static_cast<size_t>(blocks[0] * blocks[1]));
  for (float& scale : scales) scale = static_cast<float>(deviation / 1.2 * uniform(0.5, 1.5));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<size_t>(r * cols + c);
      const uint8_t code = codes[i] & 0x7f;
      const double value = std::ldexp(8 + (code & 7), (code >> 3) - 10);
      const auto block = static_cast<size_t>(r / block_rows * blocks[1] + c / block_cols);
      matrix.values[i] = value * (codes[i] >= 0x80 ? -1 : 1) * static_cast<double>(scales[block]);
    }
  }
  add(".weight", "F8_E4M3", {rows, cols}, Bytes(codes));
  add(".weight_scale", "F32", stored == StoredAs::kFp8Tensor ? std::vector<int64_t>{1} : blocks,
      Bytes(scales));
  if (stored == StoredAs::kFp8Tensor) {
    add(".input_scale", "F32", {1}, Bytes(std::vector<float>{0.02F}));
  }
  return matrix;
}

/// The quantization_config that such checkpoints come with.
inline std::string QuantizationConfig(StoredAs stored) {
  const auto compressed = [](const char* format, const char* weights) {
    return fmt::format(
        R"({{"quant_method": "compressed-tensors", "format": "{}", "quantization_status": "compressed",
            "kv_cache_scheme": null, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:vision_tower.*"],
            "config_groups": {{"group_0": {{"targets": ["Linear"], "input_activations": null,
            "output_activations": null, "weights": {}}}}}}})",
        format, weights);
  };
  switch (stored) {
    case StoredAs::kInt4:
      return compressed("pack-quantized",
                        R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                            "group_size": 32, "actorder": null, "dynamic": false})");
    case StoredAs::kInt4Of64:
      return compressed("pack-quantized",
                        R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                            "group_size": 64, "actorder": null})");
    case StoredAs::kNvfp4:
      return compressed("nvfp4-pack-quantized",
                        R"({"num_bits": 4, "type": "float", "symmetric": true,
                            "strategy": "tensor_group", "group_size": 16})");
    case StoredAs::kMxfp4:
      return compressed("mxfp4-pack-quantized",
                        R"({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                            "group_size": 32, "scale_dtype": "torch.uint8"})");
    case StoredAs::kFp8Tensor:
      return compressed("float-quantized", R"({"num_bits": 8, "type": "float", "symmetric": true,
                            "strategy": "tensor", "dynamic": false})");
    case StoredAs::kFp8Row:
      return compressed("float-quantized", R"({"num_bits": 8, "type": "float", "symmetric": true,
                            "strategy": "channel", "dynamic": false})");
    case StoredAs::kFp8Block:
      return compressed("float-quantized", R"({"num_bits": 8, "type": "float", "symmetric": true,
                            "strategy": "block", "block_structure": [128, 128]})");
    case StoredAs::kNvfp4ModelOpt:
      return R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                 "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]})";
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider::test_checkpoints
