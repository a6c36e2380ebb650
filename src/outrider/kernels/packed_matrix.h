// Weights in the one layout that every CPU instruction set reads: panels of 16 output rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider {

/// Output rows per panel.
inline constexpr int64_t kPanelRows = 16;

/// A view of a weight W [rows N, cols K] as packed by PackPanel; y = x W^T.
///
/// Panel p holds rows 16p..16p+15 (rows past N are zero) and follows panel p-1 directly.
///   kF32:  element (n, k) of a panel at float index k * 16 + n.
///   kBF16: K is padded with zeros to an even number; element (n, k) at index
///          (k / 2) * 32 + n * 2 + k % 2, which is also the B tile of AMX's TDPBF16PS.
struct PackedMatrix {
  DType format = DType::kBF16;  // kF32 or kBF16
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;  // 64-byte aligned

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
};

/// Bytes of one panel of a matrix with `cols` columns; a multiple of 64.
size_t PanelBytes(DType format, int64_t cols);

/// Bytes of a packed [rows, cols] matrix.
size_t PackedBytes(DType format, int64_t rows, int64_t cols);

/// Packs `count` (1..16) rows [count, cols] of float32 into one panel; missing rows become zero.
/// For kBF16 values are rounded to nearest even.
void PackPanel(DType format, const float* rows, int64_t count, int64_t cols, std::byte* panel);

}  // namespace outrider
