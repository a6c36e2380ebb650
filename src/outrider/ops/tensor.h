// A view of rows in the memory of a device: the argument type of every operation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"
#include "outrider/base/error.h"
#include "outrider/base/matrix_view.h"

namespace outrider {

/// [rows, cols] elements; row r starts r * stride elements behind the first. Copyable, owns
/// nothing. An operation writes to the tensors that it says it writes to, and to no other.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // >= cols

  Tensor() = default;
  Tensor(void* data_, DType dtype_, int64_t rows_, int64_t cols_, int64_t stride_)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), stride(stride_) {}
  /// Float32 rows in the host's memory.
  Tensor(float* data_, int64_t rows_, int64_t cols_)
      : Tensor(data_, DType::kF32, rows_, cols_, cols_) {}
  Tensor(MatrixView<float> view)  // NOLINT(google-explicit-constructor)
      : Tensor(view.data, DType::kF32, view.rows, view.cols, view.stride) {}
  Tensor(MatrixView<const float> view)  // NOLINT(google-explicit-constructor)
      : Tensor(const_cast<float*>(view.data), DType::kF32, view.rows, view.cols, view.stride) {}

  /// Rows [first, first + count).
  Tensor Rows(int64_t first, int64_t count) const {
    OUTRIDER_CHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {At(first * stride), dtype, count, cols, stride};
  }

  /// Columns [first, first + count) of all rows.
  Tensor Columns(int64_t first, int64_t count) const {
    OUTRIDER_CHECK(first >= 0 && count >= 0 && first + count <= cols);
    return {At(first), dtype, rows, count, stride};
  }

  /// Float32 rows that the host can read.
  MatrixView<float> floats() const {
    OUTRIDER_CHECK(dtype == DType::kF32);
    return {static_cast<float*>(data), rows, cols, stride};
  }

 private:
  void* At(int64_t element) const {
    return static_cast<std::byte*>(data) + element * static_cast<int64_t>(DTypeSize(dtype));
  }
};

}  // namespace outrider
