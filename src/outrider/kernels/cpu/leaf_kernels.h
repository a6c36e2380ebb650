// The innermost loops of the CPU backends, one set per instruction set. Task lists, scratch memory
// and checks are shared by all sets and live in the drivers of this folder; files compiled with
// instruction set flags hold leaves alone, over plain pointers, so that no inline function of a
// header is ever emitted with instructions that the machine may lack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cpu {

/// Panels of one weight times a block of rows.
struct PanelProduct {
  DType format = DType::kBF16;
  const std::byte* panels = nullptr;  // num_panels panels of panel_bytes, one after the other
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t cols = 0;                 // K
  const float* const* x = nullptr;  // [rows] pointers to K floats each
  int64_t rows = 0;
  float* y = nullptr;  // [rows, columns], row r at y + r * y_stride
  int64_t y_stride = 0;
  int64_t columns = 0;      // at most 16 * num_panels
  bool accumulate = false;  // y += instead of y =
  float* sums = nullptr;    // scratch, PanelProductScratch(rows) floats, 64-byte aligned
};

/// Rows of x up to which a leaf keeps all sums in registers and reads each panel once, in one go.
inline constexpr int64_t kRowTile = 6;
/// Panels that share a pass over a block of x when there are more rows than that.
inline constexpr int64_t kPanelGroup = 4;

constexpr int64_t PanelProductScratch(int64_t rows) { return kPanelGroup * 16 * rows; }

/// The leaves of one instruction set.
struct LeafKernels {
  void (*multiply_panels)(const PanelProduct& product);

  /// y[i] = x[i] rounded to bfloat16, for i < n.
  void (*round_to_bfloat16)(const float* x, int64_t n, float* y);
};

}  // namespace outrider::cpu
