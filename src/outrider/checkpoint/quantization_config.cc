// quantization_config of a config.json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/family_parsers.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kLargestBlock = 65536;

class QuantizationParser {
 public:
  QuantizationParser(const json& object, std::vector<std::string>& problems, Quantization& out)
      : reader_(object, "quantization_config", problems), problems_(problems), out_(out) {}

  void Parse() {
    out_.method = reader_.String("quant_method");
    if (out_.method == "fp8") ParseFp8();
    if (out_.method == "compressed-tensors") ParseCompressedTensors();
    if (out_.method == "modelopt") ParseModelOpt();
    // OpenCheckpoint refuses others; shapes are known.
  }

 private:
  void ParseFp8() {
    reader_.Choice("fmt", {"e4m3"}, "\"e4m3\" is supported", "e4m3");
    out_.format = StoredFormat::kFp8Block;
    ParseBlock(reader_, "weight_block_size");
    // Ling-3.0's experts may be stored otherwise than the rest.
    constexpr std::string_view kExperts = "routed_experts_quant_method";
    if (reader_.Find(kExperts) != nullptr) {
      reader_.Choice(kExperts, {"mxfp4"}, "\"mxfp4\" is supported");
      if (reader_.Integer("routed_experts_group_size", 1, kLargestBlock, 32) != 32) {
        reader_.Refuse("routed_experts_group_size", "32 is supported");
      }
      out_.experts_format = StoredFormat::kMxfp4;
    }
    ParseIgnored("modules_to_not_convert");
    // Each is the beginning of a module's name, or the last parts of it: "b_proj" is not kv_b_proj.
    for (const std::string& name : std::exchange(out_.ignored, {})) {
      out_.ignored.push_back(name + "*");
      out_.ignored.push_back("*." + name);
    }
  }

  /// [rows, columns] of an FP8 block.
  void ParseBlock(ConfigReader& reader, std::string_view key) {
    const json* block = reader.Find(key);
    const auto is_size = [](const json& value) {
      return value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
             value.get<uint64_t>() <= kLargestBlock;
    };
    if (block == nullptr || !block->is_array() || block->size() != 2 ||
        !std::all_of(block->begin(), block->end(), is_size)) {
      reader.Refuse(key, "rows and columns of a block are needed: [128, 128]");
      return;
    }
    out_.block_rows = (*block)[0].get<int64_t>();
    out_.block_cols = (*block)[1].get<int64_t>();
  }

  void ParseCompressedTensors() {
    ParseIgnored("ignore");
    const json* groups = reader_.Find("config_groups");
    if (groups == nullptr || !groups->is_object() || groups->empty()) {
      reader_.Refuse("config_groups", "an object with a group or more is needed");
      return;
    }
    for (const auto& [name, group] : groups->items()) {
      const json* weights =
          group.is_object() && group.contains("weights") && group["weights"].is_object()
              ? &group["weights"]
              : nullptr;
      if (weights == nullptr) {
        reader_.Refuse("config_groups", fmt::format("{} needs an object \"weights\"", Shown(name)));
        return;
      }
      ConfigReader reader(*weights, fmt::format("config_groups.{}.weights", name), problems_);
      const std::optional<StoredFormat> format = FormatOf(reader);
      if (!out_.format) out_.format = format;
    }
  }

  /// How compressed-tensors stores the weights of a group.
  std::optional<StoredFormat> FormatOf(ConfigReader& weights) {
    const int64_t bits = weights.Integer("num_bits", 1, 32);
    const std::string type = weights.Choice("type", {"int", "float"}, "\"int\" or \"float\"");
    const std::string strategy =
        weights.Choice("strategy", {"tensor", "channel", "block", "group", "tensor_group"},
                       "\"tensor\", \"channel\", \"block\", \"group\" or \"tensor_group\"");
    const json* order = weights.Find("actorder");
    if (!weights.Boolean("symmetric", true)) {
      weights.Refuse("symmetric", "weights with zero points are not supported");
    }
    if (order != nullptr && *order != false && *order != "weight" && *order != "static") {
      weights.Refuse("actorder", "columns in the order of activations are not supported");
    }
    if (type == "int" && bits == 4 && strategy == "group") {
      const int64_t group = weights.Integer("group_size", 1, kLargestBlock);
      if (group % 32 != 0) weights.Refuse("group_size", "a multiple of 32 is needed");
      return StoredFormat::kInt4;
    }
    if (type == "float" && bits == 4 && strategy == "tensor_group") return StoredFormat::kNvfp4;
    if (type == "float" && bits == 4 && strategy == "group") return StoredFormat::kMxfp4;
    if (type == "float" && bits == 8) {
      if (strategy == "tensor") return StoredFormat::kFp8Tensor;
      if (strategy == "channel") return StoredFormat::kFp8Row;
      if (strategy == "block") {
        ParseBlock(weights, "block_structure");
        return StoredFormat::kFp8Block;
      }
    }
    if (!type.empty() && !strategy.empty()) {
      weights.Refuse(
          "num_bits",
          "supported are 4 of \"int\" by \"group\", 4 of \"float\" by \"group\" or "
          "\"tensor_group\", and 8 of \"float\" by \"tensor\", \"channel\" or \"block\"");
    }
    return std::nullopt;
  }

  void ParseModelOpt() {
    ParseIgnored(reader_.Find("exclude_modules") != nullptr ? "exclude_modules" : "ignore");
    const std::string algorithm = reader_.Choice("quant_algo", {"NVFP4", "FP8"},
                                                 "\"NVFP4\" and \"FP8\" are supported of modelopt");
    if (algorithm == "NVFP4") out_.format = StoredFormat::kNvfp4;
    if (algorithm == "FP8") out_.format = StoredFormat::kFp8Tensor;
  }

  void ParseIgnored(std::string_view key) {
    const json* list = reader_.Find(key);
    if (list == nullptr) return;
    const auto is_string = [](const json& value) { return value.is_string(); };
    if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_string)) {
      reader_.Refuse(key, "a list of names is needed");
      return;
    }
    out_.ignored = list->get<std::vector<std::string>>();
  }

  ConfigReader reader_;
  std::vector<std::string>& problems_;
  Quantization& out_;
};

}  // namespace

void ParseQuantizationConfig(const json& object, std::vector<std::string>& problems,
                             Quantization& quantization) {
  QuantizationParser(object, problems, quantization).Parse();
}

}  // namespace outrider
