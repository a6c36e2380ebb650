#include "outrider/checkpoint/quantized_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/checkpoint/config_reader.h"
#include "outrider/checkpoint/stored_tensor.h"

namespace outrider {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPacked = ".weight_packed";
// Tensors of weights and activations that are not read.
constexpr std::array<std::string_view, 5> kOfActivations = {
    ".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".output_scale"};

std::string WithoutSuffix(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.size() - suffix.size()));
}

/// Takes an entry out, if it is there.
std::optional<TensorEntry> Take(TensorEntries& entries, const std::string& name) {
  auto node = entries.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

bool IsMatrix(const TensorInfo& info, DType dtype) {
  return info.dtype == dtype && info.shape.size() == 2;
}

/// Turns a matrix of bytes or words into one of codes, `codes` to an element.
void BecomeCodes(TensorInfo& info, DType dtype, int64_t codes) {
  info.dtype = dtype;
  if (info.shape[1] <= INT64_MAX / codes) info.shape[1] *= codes;
}

/// What is wrong with the scales of groups of 4-bit codes, one for every parts.group_cols columns;
/// fills in group_cols where it is 0.
std::string GroupProblem(const TensorInfo& weight, QuantizedParts& parts) {
  const TensorInfo& scales = parts.scales.info;
  const bool fits = scales.shape.size() == 2 && scales.shape[0] == weight.shape[0] &&
                    scales.shape[1] > 0 && weight.shape[1] % scales.shape[1] == 0;
  const int64_t group = fits ? weight.shape[1] / scales.shape[1] : 0;
  if (group == 0 || (parts.group_cols != 0 && group != parts.group_cols) ||
      (parts.group_cols == 0 && group % kInt4Group != 0)) {
    return fmt::format("(scales are [{}], not one for every {} columns of [{}])",
                       fmt::join(scales.shape, ", "),
                       parts.group_cols == 0 ? fmt::format("{} or a multiple of it", kInt4Group)
                                             : fmt::to_string(parts.group_cols),
                       fmt::join(weight.shape, ", "));
  }
  parts.group_cols = group;
  return "";
}

/// INT4: words of eight codes with 8 added to each, the first in the lowest bits.
void FinishInt4(TensorEntries& entries, const std::string& base, TensorInfo& weight,
                QuantizedParts& parts) {
  BecomeCodes(weight, DType::kI4, 8);
  parts.shape = Take(entries, base + ".weight_shape");
  if (Take(entries, base + ".weight_zero_point")) {
    parts.problem = "(it has zero points; symmetric INT4 without them can be read)";
  } else if (Take(entries, base + ".weight_g_idx")) {
    parts.problem = "(its columns are reordered by activation; INT4 in order can be read)";
  } else if (parts.scales.info.dtype != DType::kBF16) {
    parts.problem =
        fmt::format("(scales are {}; BF16 is needed)", Shown(parts.scales.info.dtype_name));
  } else {
    parts.problem = GroupProblem(weight, parts);
  }
}

/// FP4 of U8: NVFP4 where scales are e4m3, MXFP4 where they are e8m0, which some files call U8.
void FinishFp4(TensorEntries& entries, const std::string& base, TensorInfo& weight,
               QuantizedParts& parts) {
  BecomeCodes(weight, DType::kF4E2M1, 2);
  TensorInfo& scales = parts.scales.info;
  if (scales.dtype == DType::kU8) scales.dtype = DType::kF8E8M0;
  if (scales.dtype == DType::kF8E8M0) {
    parts.group_cols = kFp4Group;
    parts.problem = GroupProblem(weight, parts);
    return;
  }
  if (scales.dtype != DType::kF8E4M3) {
    parts.problem =
        fmt::format("(scales are {}, not F8_E4M3, F8_E8M0 or U8)", Shown(scales.dtype_name));
    return;
  }
  parts.group_cols = kNvfp4Group;
  parts.global = Take(entries, base + ".weight_scale_2");
  if (!parts.global) {
    parts.global = Take(entries, base + ".weight_global_scale");
    parts.divides_by_global = true;
  }
  if (!parts.global) {
    parts.problem = "(no weight_scale_2 or weight_global_scale beside its weight_scale)";
  } else if (parts.global->info.dtype != DType::kF32 ||
             parts.global->info.end - parts.global->info.begin != sizeof(float)) {
    parts.problem = "(its global scale is not one F32)";
  } else {
    parts.problem = GroupProblem(weight, parts);
  }
}

/// NAME.weight_packed becomes NAME.weight.
void TakePacked(TensorEntries& entries, QuantizedTensors& quantized) {
  std::vector<std::string> bases;
  for (const auto& [name, entry] : entries) {
    const bool known = IsMatrix(entry.info, DType::kI32) || IsMatrix(entry.info, DType::kU8);
    if (known && name.ends_with(kPacked)) bases.push_back(WithoutSuffix(name, kPacked));
  }
  for (const std::string& base : bases) {
    if (entries.contains(base + std::string(kWeight))) continue;  // unexpected, with its parts
    auto node = entries.extract(base + std::string(kPacked));
    node.key() = base + std::string(kWeight);
    TensorInfo& weight = entries.insert(std::move(node)).position->second.info;
    QuantizedParts& parts = quantized[base + std::string(kWeight)];
    auto scales = Take(entries, base + ".weight_scale");
    if (!scales) {
      BecomeCodes(weight, weight.dtype == DType::kI32 ? DType::kI4 : DType::kF4E2M1,
                  weight.dtype == DType::kI32 ? 8 : 2);
      parts.problem = fmt::format("(no {}.weight_scale)", base);
      continue;
    }
    parts.scales = std::move(*scales);
    if (weight.dtype == DType::kI32) {
      FinishInt4(entries, base, weight, parts);
    } else {
      FinishFp4(entries, base, weight, parts);
    }
  }
}

/// Takes the scales of NAME.weight as it is.
void TakeScales(TensorEntries& entries, QuantizedTensors& quantized) {
  for (auto it = entries.begin(); it != entries.end(); ++it) {
    const std::string& name = it->first;
    TensorInfo& weight = it->second.info;
    const bool fp8 = weight.dtype == DType::kF8E4M3;
    const bool pairs = IsMatrix(weight, DType::kU8) || IsMatrix(weight, DType::kI8);
    if ((!fp8 && !pairs) || quantized.contains(name)) continue;
    const bool named = name.ends_with(kWeight);
    const std::string base = named ? WithoutSuffix(name, kWeight) : "";
    for (const std::string& of : {name + "_scale_inv", base + ".weight_scale", base + ".scale"}) {
      const auto found = named || of == name + "_scale_inv" ? entries.find(of) : entries.end();
      if (found == entries.end()) continue;
      const std::optional<DType> type = found->second.info.dtype;
      const bool of_powers = type == DType::kF8E8M0;
      const bool scales_pairs = of == name + "_scale_inv"    ? of_powers || type == DType::kU8
                                : weight.dtype == DType::kI8 ? of_powers
                                                             : type == DType::kF8E4M3;
      if (!fp8 && !scales_pairs) continue;
      QuantizedParts& parts = quantized[name];
      parts.scales = *Take(entries, of);
      if (pairs) FinishFp4(entries, base, weight, parts);
      break;
    }
  }
}

}  // namespace

QuantizedTensors TakeQuantizedTensors(TensorEntries& entries) {
  std::erase_if(entries, [](const auto& entry) {
    return std::ranges::any_of(
        kOfActivations, [&](std::string_view suffix) { return entry.first.ends_with(suffix); });
  });
  QuantizedTensors quantized;
  TakePacked(entries, quantized);
  TakeScales(entries, quantized);
  return quantized;
}

float ReadGlobalScale(const QuantizedParts& parts) {
  if (!parts.global) return 1;
  float scale = 0;
  parts.global->file->ReadAt(parts.global->info.begin, sizeof scale, &scale);
  const float global = parts.divides_by_global ? 1 / scale : scale;
  if (!std::isfinite(global) || global == 0) {
    throw InvalidArgument("{}: {} is {}, no scale", parts.global->file->path().string(),
                          parts.global->info.name, scale);
  }
  return global;
}

void CheckStoredShape(const QuantizedParts& parts, const TensorInfo& weight) {
  if (!parts.shape) return;
  const TensorInfo& info = parts.shape->info;
  std::vector<float> shape;
  if (info.dtype == DType::kI32 || info.dtype == DType::kI64) {
    const StoredTensor tensor(parts.shape->file, info, {});
    shape.resize(static_cast<size_t>(std::min<int64_t>(tensor.rows() * tensor.cols(), 2)));
    if (info.shape == std::vector<int64_t>{2}) tensor.ReadRows(0, 1, shape.data());
  }
  const bool equal = shape.size() == 2 && shape[0] == static_cast<float>(weight.shape[0]) &&
                     shape[1] == static_cast<float>(weight.shape[1]);
  if (equal) return;
  throw InvalidArgument("{}: {} is not [{}], the shape of {}", parts.shape->file->path().string(),
                        info.name, fmt::join(weight.shape, ", "), weight.name);
}

}  // namespace outrider
