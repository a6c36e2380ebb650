// What a checkpoint's tensors are packed as on the GPU. Codes stay codes where a kernel reads their
// form; any other matrix is bf16, rounded once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/parallel/share.h"

namespace outrider::cuda {

/// Rows and columns of a tensor [tensor_rows, tensor_cols], or of matrix `index` of a tensor
/// [stack, tensor_rows, tensor_cols].
struct TensorPart {
  std::string name;
  int64_t tensor_rows = 0;
  int64_t tensor_cols = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stack = 0;  // 0: the tensor is one matrix
  int64_t index = 0;

  ExpectedTensor Expected() const {
    if (stack == 0) return {.name = name, .shape = {tensor_rows, tensor_cols}};
    return {.name = name, .shape = {stack, tensor_rows, tensor_cols}, .index = index};
  }

  static TensorPart Whole(std::string name, int64_t rows, int64_t cols) {
    return {.name = std::move(name),
            .tensor_rows = rows,
            .tensor_cols = cols,
            .rows = rows,
            .cols = cols};
  }
};

/// What a matrix is packed as, which follows from the whole weight, not from a rank's part of it.
struct MatrixForm {
  WeightFormat format = WeightFormat::kBf16;
  int segments = 0;  // PackedWeight's
};

/// A part and its tensor, open for reading.
struct OpenPart {
  TensorPart part;
  std::unique_ptr<WeightTensor> tensor;
};
OpenPart OpenIn(const WeightSource& source, const TensorPart& part);

/// The matrices of a gated MLP.
struct MlpParts {
  TensorPart gate;
  TensorPart up;
  TensorPart down;
};

/// What a matrix of these parts, one under the other, is packed as.
WeightFormat FormatOf(const std::vector<OpenPart>& parts);
WeightFormat FormatOf(const WeightSource& source, const std::vector<TensorPart>& parts);

/// Throws Error where the place's part of each of these matrices, of equal shapes and one under the
/// other, would begin or end inside blocks of scales; it names how many ranks can share them.
void CheckCut(const WeightSource& source, const std::vector<TensorPart>& wholes, Cut cut,
              const RankPlace& place, WeightFormat format);

/// What matrices that must be packed alike are packed as, each of which could be a or b.
WeightFormat Together(WeightFormat a, WeightFormat b);

/// What MLPs of equal shapes are packed as: all of them alike.
struct MlpFormats {
  WeightFormat gate_up;
  WeightFormat down;
};
MlpFormats FormatsOf(const WeightSource& source, const std::vector<MlpParts>& mlps);

/// The type of a format's codes.
DType TypeOf(WeightFormat format);

/// Bytes of `count` numbers of a row as PackWeight takes them, an even number of codes of 4 bits.
int64_t UnpackedBytes(WeightFormat format, int64_t count);
/// Bytes of the scales of `cols` columns of a row, in a format of 4 bits.
int64_t GroupScaleBytes(WeightFormat format, int64_t cols);

/// float32 scales of a part's blocks [ceil(rows / 128), ceil(cols / 128)] or rows [rows], as the
/// format has them; of others none.
std::vector<float> ScalesOf(const OpenPart& part, WeightFormat format);

}  // namespace outrider::cuda
