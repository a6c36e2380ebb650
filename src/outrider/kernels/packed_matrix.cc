#include "outrider/kernels/packed_matrix.h"

#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

namespace {

bool IsPanelFormat(DType format) { return format == DType::kF32 || format == DType::kBF16; }

}  // namespace

size_t PanelBytes(DType format, int64_t cols) {
  OUTRIDER_CHECK(IsPanelFormat(format) && cols >= 0);
  const int64_t padded = format == DType::kBF16 ? (cols + 1) / 2 * 2 : cols;
  return static_cast<size_t>(padded * kPanelRows) * DTypeSize(format);
}

size_t PackedBytes(DType format, int64_t rows, int64_t cols) {
  OUTRIDER_CHECK(rows >= 0);
  const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
  return static_cast<size_t>(panels) * PanelBytes(format, cols);
}

void PackPanel(DType format, const float* rows, int64_t count, int64_t cols, std::byte* panel) {
  OUTRIDER_CHECK(count >= 1 && count <= kPanelRows);
  const size_t bytes = PanelBytes(format, cols);
  const bool every_element_is_written =
      count == kPanelRows && (format == DType::kF32 || cols % 2 == 0);
  if (!every_element_is_written) std::memset(panel, 0, bytes);
  if (format == DType::kF32) {
    auto* out = reinterpret_cast<float*>(panel);
    for (int64_t k = 0; k < cols; ++k) {
      for (int64_t n = 0; n < count; ++n) out[k * kPanelRows + n] = rows[n * cols + k];
    }
    return;
  }
  auto* out = reinterpret_cast<BFloat16*>(panel);
  for (int64_t k = 0; k < cols; ++k) {
    BFloat16* pair = out + k / 2 * 2 * kPanelRows + k % 2;
    for (int64_t n = 0; n < count; ++n) pair[n * 2] = ToBFloat16(rows[n * cols + k]);
  }
}

}  // namespace outrider
