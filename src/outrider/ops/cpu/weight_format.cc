#include "outrider/ops/cpu/weight_format.h"

#include <algorithm>
#include <cmath>

namespace outrider::cpu {

namespace {

/// Scales that kernels can take apart into powers of two without leaving the range of a float.
bool FitProducts(const BlockScales& scales) {
  return std::all_of(scales.values.begin(), scales.values.end(), [](float scale) {
    const float magnitude = std::fabs(scale);
    return magnitude == 0 || (magnitude >= 0x1p-60F && magnitude <= 0x1p40F);
  });
}

bool ArePowersOfTwo(const BlockScales& scales) {
  return std::all_of(scales.values.begin(), scales.values.end(), [](float scale) {
    int exponent = 0;
    return std::frexp(scale, &exponent) == 0.5F;
  });
}

}  // namespace

DType PlainFormat(const WeightForm& form, const OpenTensors& tensors) {
  if (form.compute_dtype == DType::kBF16) return DType::kBF16;
  const bool exact = std::all_of(tensors.begin(), tensors.end(),
                                 [](const auto& t) { return t->exact_in_bfloat16(); });
  return exact ? DType::kBF16 : DType::kF32;
}

PackedFormat ChooseFormat(const WeightForm& form, const OpenTensors& tensors,
                          const MatrixUse& use) {
  const bool fours = use.cols % 4 == 0;
  if (form.quantization == WeightQuantization::kInt8 && fours) return {.dtype = DType::kI8};
  const bool fp4 = std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor->stored_dtype() == DType::kF4E2M1;
  });
  if (fp4 && use.whole_rows && use.weights_used_together > form.max_fp8_weights_as_bf16) {
    return {.dtype = DType::kF4E2M1};
  }
  const BlockScales* scales = tensors.front()->block_scales();
  const bool fp8 = std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    const BlockScales* own = tensor->block_scales();
    return own != nullptr && FitProducts(*own) && own->block_cols == scales->block_cols;
  });
  if (fp8 && use.weights_used_together > form.max_fp8_weights_as_bf16 && fours &&
      scales->block_cols % 4 == 0 && scales->block_rows % kPanelRows == 0 &&
      use.part_row_multiple % kPanelRows == 0) {
    const bool powers = std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
      return ArePowersOfTwo(*tensor->block_scales());
    });
    return {
        .dtype = DType::kF8E4M3, .scale_cols = scales->block_cols, .power_of_two_scales = powers};
  }
  return {.dtype = PlainFormat(form, tensors)};
}

}  // namespace outrider::cpu
