#include "outrider/checkpoint/weight_source.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

WeightTensor::WeightTensor(std::vector<int64_t> shape) : shape_(std::move(shape)) {
  if (shape_.empty()) return;
  cols_ = shape_.back();
  for (size_t i = 0; i + 1 < shape_.size(); ++i) rows_ *= shape_[i];
}

void WeightTensor::ReadCodes(int64_t /*first_row*/, int64_t /*count*/, uint8_t* /*out*/) const {
  OUTRIDER_CHECK(false, "only FP8 and FP4 tensors have codes");
}

void WeightTensor::ReadExponents(int64_t /*first_row*/, int64_t /*count*/, uint8_t* /*out*/) const {
  OUTRIDER_CHECK(false, "only FP4 tensors have exponents");
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
  return count;
}

}  // namespace outrider
