// Chooses the format of each weight in memory from the format that the checkpoint stores it in.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider {

/// Rounding of weights at load that the user asks for (--quantization).
enum class WeightQuantization { kNone, kInt8 };

/// How weights are kept in memory.
///
/// An FP8 matrix keeps its codes and scales if both hold:
///   - it is used with more than max_fp8_weights_as_bf16 weights, where all experts of a layer
///   count
///     as one matrix;
///   - its scale blocks cover whole panels of rows and a multiple of 4 columns.
/// Any other matrix is rounded to bfloat16 with compute_dtype kBF16. With kF32 it keeps its values,
/// stored as bfloat16 where that loses nothing. With kInt8 every matrix is rounded to 8 bits with
/// one scale per row instead, except those declared unquantized.
struct WeightForm {
  DType compute_dtype = DType::kBF16;
  WeightQuantization quantization = WeightQuantization::kNone;
  int64_t max_fp8_weights_as_bf16 = 0;  // KernelTable's
};

/// The checkpoint tensors that one weight is made of, at least one.
using OpenTensors = std::vector<std::unique_ptr<WeightTensor>>;

/// bfloat16 where the compute dtype is bfloat16 or the values are exact in it, else float32.
DType PlainFormat(const WeightForm& form, const OpenTensors& tensors);

/// How a matrix is used, which its tensors do not say.
struct MatrixUse {
  int64_t weights_used_together = 0;  // of the matrix and of those that the same rows read with it
  int64_t cols = 0;                   // a divisor of the columns of all its parts
  int64_t part_row_multiple = 0;      // every part starts at a multiple of this row of its tensor
};

/// The format that the rules of WeightForm give. Pure.

PackedFormat ChooseFormat(const WeightForm& form, const OpenTensors& tensors, const MatrixUse& use);

}  // namespace outrider
