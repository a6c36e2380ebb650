// In which format a weight is kept in memory: a rule over how the checkpoint stores it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider {

/// What weights are made into at load beyond what their computation needs.
enum class WeightQuantization { kNone, kInt8 };

/// How weights are kept in memory.
///
/// FP8 matrices keep their codes and scales if they are more than few_weights, an MLP and those
/// like it counted as one, and if the blocks allow it (whole panels of rows, columns in fours).
/// Others are rounded to bfloat16 with compute_dtype kBF16; with kF32 they keep their values, as
/// bfloat16 where that loses nothing. kInt8 rounds every matrix to 8 bits per row instead, but for
/// those declared unquantized.
struct WeightForm {
  DType compute_dtype = DType::kBF16;
  WeightQuantization quantization = WeightQuantization::kNone;
  int64_t few_weights = 0;  // of the kernels (kernel_table.h)
};

/// The tensors that a weight is made of, one at least.
using OpenTensors = std::vector<std::unique_ptr<WeightTensor>>;

/// bfloat16 where it is asked for or loses nothing, else float32.
DType PlainFormat(const WeightForm& form, const OpenTensors& tensors);

/// What there is to know of a matrix beside its tensors.
struct FormatQuestion {
  int64_t together = 0;       // weights of the matrix and those that it is used with
  int64_t cols = 0;           // has the factors that the columns of all its parts have
  int64_t rows_together = 0;  // parts start at multiples of this in the tensors
};

PackedFormat ChooseFormat(const WeightForm& form, const OpenTensors& tensors,
                          const FormatQuestion& question);

}  // namespace outrider
