// Chooses the format of each weight in memory from the format that the checkpoint stores it in.
#pragma once

#include <cstdint>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/packed_matrix.h"
#include "outrider/ops/weight_loader.h"

namespace outrider::cpu {

/// bfloat16 where the compute dtype is bfloat16 or the values are exact in it, else float32.
DType PlainFormat(const WeightForm& form, const OpenTensors& tensors);

/// The scale of a row of a tensor whose format in memory has row_scales.
float RowScale(const WeightTensor& tensor, int64_t row);

/// How a matrix is used, which its tensors do not say.
struct MatrixUse {
  int64_t weights_used_together = 0;  // of the matrix and of those that the same rows read with it
  int64_t cols = 0;                   // a divisor of the columns of all its parts
  int64_t part_row_multiple = 0;      // every part starts at a multiple of this row of its tensor
  bool whole_rows = false;            // its rows are the tensors' rows
};

/// The format that the rules of WeightForm give. Pure.
PackedFormat ChooseFormat(const WeightForm& form, const OpenTensors& tensors, const MatrixUse& use);

}  // namespace outrider::cpu
