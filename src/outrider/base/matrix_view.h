// A non-owning view of row-major rows, the argument type of every kernel.
#pragma once

#include <cstdint>

#include "outrider/base/error.h"

namespace outrider {

/// [rows, cols] elements of T; row r starts at data + r * stride. Copyable, owns nothing.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements between the starts of neighbouring rows, >= cols

  MatrixView() = default;
  MatrixView(T* data_, int64_t rows_, int64_t cols_) : MatrixView(data_, rows_, cols_, cols_) {}
  MatrixView(T* data_, int64_t rows_, int64_t cols_, int64_t stride_)
      : data(data_), rows(rows_), cols(cols_), stride(stride_) {}

  T* row(int64_t r) const { return data + r * stride; }

  /// Rows [first, first + count).
  MatrixView Rows(int64_t first, int64_t count) const {
    OUTRIDER_CHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {row(first), count, cols, stride};
  }

  /// Columns [first, first + count) of all rows.
  MatrixView Columns(int64_t first, int64_t count) const {
    OUTRIDER_CHECK(first >= 0 && count >= 0 && first + count <= cols);
    return {data + first, rows, count, stride};
  }

  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT
};

}  // namespace outrider
