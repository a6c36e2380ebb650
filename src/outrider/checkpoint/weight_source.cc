#include "outrider/checkpoint/weight_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

WeightTensor::WeightTensor(std::vector<int64_t> shape) : shape_(std::move(shape)) {
  if (shape_.empty()) return;
  cols_ = shape_.back();
  for (size_t i = 0; i + 1 < shape_.size(); ++i) rows_ *= shape_[i];
}

void WeightTensor::ReadCodes(int64_t /*first_row*/, int64_t /*count*/, uint8_t* /*out*/) const {
  OUTRIDER_CHECK(false, "only tensors of 8 and 4 bits have codes");
}

void WeightTensor::ReadGroupScales(int64_t /*first_row*/, int64_t /*count*/,
                                   uint8_t* /*out*/) const {
  OUTRIDER_CHECK(false, "only tensors of 4 bits have groups");
}

void WidenFourBitCodes(DType dtype, const GroupScales& scales, const uint8_t* codes,
                       const uint8_t* group_scales, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    const uint8_t pair = codes[i / 2];
    const auto code = static_cast<uint8_t>(i % 2 == 0 ? pair & 0xf : pair >> 4);
    const int64_t group = i / scales.cols;
    float scale = 0;
    if (scales.dtype == DType::kF8E8M0) {
      scale = Float8E8M0ToFloat(group_scales[group]);
    } else if (scales.dtype == DType::kF8E4M3) {
      scale = Float8E4M3ToFloat(group_scales[group]);
    } else {
      BFloat16 narrow;
      std::memcpy(&narrow, group_scales + 2 * group, 2);
      scale = ToFloat(narrow);
    }
    const float value = dtype == DType::kI4 ? Int4ToFloat(code) : Float4E2M1ToFloat(code);
    out[i] = value * scale * scales.global;
  }
}

void WeightTensor::ReadBFloat16(int64_t first_row, int64_t count, BFloat16* out) const {
  std::vector<float> values(static_cast<size_t>(count * cols()));
  ReadRows(first_row, count, values.data());
  std::ranges::transform(values, out, ToBFloat16);
}

int CountMtpLayers(const WeightSource& source, const ModelConfig& config) {
  if (config.dspark) {
    return source.Has(config.tensor_prefix + "mtp.0.main_proj.weight")
               ? static_cast<int>(config.dspark->stages)
               : 0;
  }
  const auto name = [&](int module) {
    return config.family == ModelFamily::kDeepSeekV4
               ? fmt::format("{}mtp.{}.e_proj.weight", config.tensor_prefix, module)
               : fmt::format("{}model.layers.{}.eh_proj.weight", config.tensor_prefix,
                             config.num_hidden_layers() + module);
  };
  int count = 0;
  while (source.Has(name(count))) ++count;
  if (count > 0 && config.family == ModelFamily::kStep3p5 &&
      !std::holds_alternative<GqaSpec>(config.mtp_layer.attention)) {
    throw InvalidArgument(
        "{}: holds the MTP module {}, but the lists of config.json, \"layer_types\" first, have no "
        "element for layer {}",
        source.where(), name(0), config.num_hidden_layers());
  }
  return count;
}

}  // namespace outrider
