#include "outrider/kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

namespace {

bool IsEightBit(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kI8; }

bool IsFourBit(DType dtype) { return dtype == DType::kF4E2M1 || dtype == DType::kI4; }

bool IsPanelFormat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || IsFourBit(dtype) || IsEightBit(dtype);
}

/// Columns of a panel come in whole groups of this many.
int64_t ColumnGroup(DType dtype) {
  if (IsEightBit(dtype)) return 4;
  if (IsFourBit(dtype)) return kNvfp4Group;
  return dtype == DType::kBF16 ? 2 : 1;
}

/// Bytes of one panel's scales of groups.
int64_t GroupScaleBytes(PackedFormat format, int64_t cols) {
  if (!IsFourBit(format.dtype)) return 0;
  OUTRIDER_CHECK(cols % format.group_cols() == 0);
  return cols / format.group_cols() * kPanelRows *
         static_cast<int64_t>(DTypeSize(format.group_scale));
}

/// Bytes of everything between the panels and the scales of rows.
size_t ScaleBytes(PackedFormat format, int64_t panels, int64_t cols) {
  const int64_t bytes =
      panels * (ScalesPerPanel(format, cols) * static_cast<int64_t>(sizeof(float)) +
                GroupScaleBytes(format, cols));
  return static_cast<size_t>((bytes + 63) / 64 * 64);
}

}  // namespace

int64_t PackedFormat::group_cols() const {
  if (dtype == DType::kI4) return kInt4Group;
  if (dtype != DType::kF4E2M1) return 0;
  return group_scale == DType::kF8E4M3 ? kNvfp4Group : kFp4Group;
}

int64_t ScalesPerPanel(PackedFormat format, int64_t cols) {
  if (format.dtype == DType::kI8) return kPanelRows;
  if (format.dtype != DType::kF8E4M3) return 0;
  OUTRIDER_CHECK(format.scale_cols > 0 && format.scale_cols % 4 == 0);
  return (cols + format.scale_cols - 1) / format.scale_cols;
}

size_t PanelBytes(DType dtype, int64_t cols) {
  OUTRIDER_CHECK(IsPanelFormat(dtype) && cols >= 0);
  const int64_t group = ColumnGroup(dtype);
  const bool is_float = dtype == DType::kF32 || dtype == DType::kBF16;
  OUTRIDER_CHECK(is_float || cols % group == 0, "{} columns of {}", cols, DTypeName(dtype));
  if (IsFourBit(dtype)) return static_cast<size_t>(cols / 2 * kPanelRows);
  const int64_t padded = (cols + group - 1) / group * group;
  return static_cast<size_t>(padded * kPanelRows) * DTypeSize(dtype);
}

size_t PackedBytes(PackedFormat format, int64_t rows, int64_t cols) {
  OUTRIDER_CHECK(rows >= 0);
  OUTRIDER_CHECK(!format.row_scales || format.dtype == DType::kF8E4M3 ||
                 format.dtype == DType::kF4E2M1);
  const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
  const auto num_panels = static_cast<size_t>(panels);
  return num_panels * PanelBytes(format.dtype, cols) + ScaleBytes(format, panels, cols) +
         (format.row_scales ? num_panels * kPanelRows * sizeof(float) : 0);
}

const std::byte* PackedMatrix::BehindPanels() const {
  return data + static_cast<size_t>(panels() + panels_behind) * PanelBytes(format.dtype, cols);
}

const float* PackedMatrix::scales(int64_t p) const {
  return reinterpret_cast<const float*>(BehindPanels()) +
         (panels_before + p) * ScalesPerPanel(format, cols);
}

const uint8_t* PackedMatrix::group_scales(int64_t p) const {
  OUTRIDER_CHECK(IsFourBit(format.dtype));
  return reinterpret_cast<const uint8_t*>(BehindPanels()) +
         (panels_before + p) * GroupScaleBytes(format, cols);
}

const float* PackedMatrix::row_scales(int64_t p) const {
  OUTRIDER_CHECK(format.row_scales);
  return reinterpret_cast<const float*>(BehindPanels() + ScaleBytes(format, AllPanels(), cols)) +
         (panels_before + p) * kPanelRows;
}

PackedMatrix PackedMatrix::Rows(int64_t first, int64_t n) const {
  OUTRIDER_CHECK(first >= 0 && n >= 0 && n <= rows - first && first % kPanelRows == 0,
                 "rows {} to {} of {}", first, first + n, rows);
  const int64_t skipped = first / kPanelRows;
  PackedMatrix part = *this;
  part.rows = n;
  part.data += skipped * static_cast<int64_t>(PanelBytes(format.dtype, cols));
  part.panels_before += skipped;
  part.panels_behind += panels() - skipped - part.panels();
  return part;
}

void PackPanel(DType dtype, const float* rows, int64_t count, int64_t cols, std::byte* panel) {
  OUTRIDER_CHECK(count >= 1 && count <= kPanelRows && !IsEightBit(dtype));
  const size_t bytes = PanelBytes(dtype, cols);
  const bool every_element_is_written =
      count == kPanelRows && (dtype == DType::kF32 || cols % 2 == 0);
  if (!every_element_is_written) std::memset(panel, 0, bytes);
  if (dtype == DType::kF32) {
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

void PackFp8Panel(const uint8_t* rows, int64_t count, int64_t cols, std::byte* panel) {
  OUTRIDER_CHECK(count >= 1 && count <= kPanelRows);
  if (count < kPanelRows) std::memset(panel, 0, PanelBytes(DType::kF8E4M3, cols));
  for (int64_t n = 0; n < count; ++n) {
    std::byte* out = panel + n % 8 * 4 + n / 8 * 2;
    for (int64_t k = 0; k < cols; ++k) out[k / 2 * 32 + k % 2] = std::byte{rows[n * cols + k]};
  }
}

void PackFourBitPanel(const PackedMatrix& matrix, int64_t p, const uint8_t* codes,
                      const uint8_t* group_scales, int64_t count) {
  const int64_t group_cols = matrix.format.group_cols();
  OUTRIDER_CHECK(count >= 1 && count <= kPanelRows && group_cols > 0);
  const int64_t bytes = matrix.cols / 2;
  const int64_t groups = matrix.cols / group_cols;
  const auto size = static_cast<int64_t>(DTypeSize(matrix.format.group_scale));
  auto* const panel = const_cast<std::byte*>(matrix.data) + p * bytes * kPanelRows;
  auto* const panel_scales = const_cast<uint8_t*>(matrix.group_scales(p));
  if (count < kPanelRows) {
    std::memset(panel, 0, static_cast<size_t>(bytes * kPanelRows));
    // 2^0; the others are 0.
    const uint8_t none = matrix.format.group_scale == DType::kF8E8M0 ? 127 : 0;
    std::fill_n(panel_scales, groups * kPanelRows * size, none);
  }
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t k = 0; k < matrix.cols; k += 8) {
      uint32_t word = 0;
      for (int64_t i = k; i < k + 8; ++i) {
        const uint32_t code = codes[n * bytes + i / 2] >> i % 2 * 4 & 15U;
        word |= code << CodeBit(i);
      }
      std::memcpy(panel + (k / 8 * kPanelRows + n) * 4, &word, sizeof(word));
    }
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(panel_scales + (g * kPanelRows + n) * size,
                  group_scales + (n * groups + g) * size, static_cast<size_t>(size));
    }
  }
}

void PackInt8Panel(const float* rows, int64_t count, int64_t cols, std::byte* panel,
                   float* scales) {
  OUTRIDER_CHECK(count >= 1 && count <= kPanelRows);
  if (count < kPanelRows) std::memset(panel, 0, PanelBytes(DType::kI8, cols));
  std::fill_n(scales, kPanelRows, 0.0F);
  auto* out = reinterpret_cast<int8_t*>(panel);
  for (int64_t n = 0; n < count; ++n) {
    const float* row = rows + n * cols;
    float largest = 0;
    for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, std::fabs(row[k]));
    scales[n] = largest / 127;
    // The quotient of a subnormal scale may pass 127 by rounding.
    for (int64_t k = 0; k < cols; ++k) {
      const float code = scales[n] == 0 ? 0.0F : std::nearbyint(row[k] / scales[n]);
      out[k * kPanelRows + n] = static_cast<int8_t>(std::clamp(code, -127.0F, 127.0F));
    }
  }
}

}  // namespace outrider
