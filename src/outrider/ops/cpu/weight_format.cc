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

// FP8 rows with one scale each have scales of 1 for this many columns: the most that products take
// at a time.
constexpr int64_t kColumnsOfOnes = 256;

/// Whether all tensors are of one type of 4-bit codes, in groups that divide `cols`.
bool HaveGroupsAlike(const OpenTensors& tensors, int64_t cols) {
  const GroupScales* first = tensors.front()->group_scales();
  return first != nullptr && cols % first->cols == 0 &&
         std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
           const GroupScales* own = tensor->group_scales();
           return own != nullptr && tensor->stored_dtype() == tensors.front()->stored_dtype() &&
                  own->dtype == first->dtype && own->cols == first->cols &&
                  (own->global == 1 || own->dtype == DType::kF8E4M3);
         });
}

/// Whether all tensors are FP8 with a scale for each row, or one for all of them.
bool HaveScalesOfRows(const OpenTensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    const BlockScales* scales = tensor->block_scales();
    return scales != nullptr && scales->block_cols == tensor->cols() &&
           (scales->block_rows == 1 || scales->block_rows == tensor->rows());
  });
}

}  // namespace

float RowScale(const WeightTensor& tensor, int64_t row) {
  const BlockScales* scales = tensor.block_scales();
  if (scales == nullptr) return tensor.group_scales()->global;
  return scales->values[static_cast<size_t>(row / scales->block_rows)];
}

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
  const bool many = use.weights_used_together > form.max_fp8_weights_as_bf16;
  if (many && use.whole_rows && HaveGroupsAlike(tensors, use.cols)) {
    const GroupScales& group = *tensors.front()->group_scales();
    return {.dtype = tensors.front()->stored_dtype(),
            .group_scale = group.dtype,
            .row_scales = group.dtype == DType::kF8E4M3};
  }
  if (many && use.whole_rows && fours && HaveScalesOfRows(tensors)) {
    return {.dtype = DType::kF8E4M3,
            .scale_cols = kColumnsOfOnes,
            .power_of_two_scales = true,
            .row_scales = true};
  }
  const BlockScales* scales = tensors.front()->block_scales();
  const bool fp8 = std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    const BlockScales* own = tensor->block_scales();
    return own != nullptr && FitProducts(*own) && own->block_cols == scales->block_cols;
  });
  if (fp8 && many && fours && scales->block_cols % 4 == 0 && scales->block_rows % kPanelRows == 0 &&
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
