// Weights in the one layout that every CPU instruction set reads: panels of 16 output rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider {

/// Output rows per panel.
inline constexpr int64_t kPanelRows = 16;

/// Where a column's code begins in its word of a matrix of 4-bit codes (PackedMatrix).
constexpr int64_t CodeBit(int64_t k) { return k % 2 * 16 + k % 8 / 2 * 4; }

/// What the elements of a packed weight are. Formats of 8 and 4 bits have scales, and a number of
/// columns that is a multiple of 4 or of group_cols.
struct PackedFormat {
  DType dtype = DType::kBF16;  // kF32, kBF16, kF8E4M3, kF4E2M1, kI4 or kI8
  // kF8E4M3: columns of a panel that share a scale, a multiple of 4; whether all scales are powers
  // of two, so that multiplying a weight by its scale loses nothing.
  int64_t scale_cols = 0;
  bool power_of_two_scales = false;
  // The scales' type in 4-bit formats, of which group_cols columns of a row share a scale: kF8E8M0,
  // a power of two, or kF8E4M3 with kF4E2M1, and kBF16 with kI4.
  DType group_scale = DType::kF8E8M0;
  // kF8E4M3 and kF4E2M1: every row has a float32 scale too.
  bool row_scales = false;

  /// Columns of a row that share a scale; 0 for formats of other than 4 bits.
  int64_t group_cols() const;

  bool operator==(const PackedFormat&) const = default;
};

/// A view of a weight W [rows N, cols K] as packed by the functions below; y = x W^T.
///
/// Panel p holds rows 16p..16p+15 (rows past N are zero) and follows panel p-1 directly.
///   kF32:    element (n, k) of a panel at float index k * 16 + n.
///   kBF16:   K is padded with zeros to an even number; element (n, k) at index
///            (k / 2) * 32 + n * 2 + k % 2, which is also the B tile of AMX's TDPBF16PS.
///   kF8E4M3: W[n, k] = code * scale; the code of (n, k) at byte (k / 2) * 32 + n % 8 * 4 +
///            n / 8 * 2 + k % 2. Behind the last panel the scales, [panels, scale_groups()]:
///            one for every scale_cols columns of a panel.
///   kF4E2M1: W[n, k] = code * the scale of row n and of group_cols columns, a bfloat16 value.
///            Eight columns of a row are a word of 32 bits (little endian), the code of (n, k) in
///            the four bits from CodeBit(k) on of word k / 8 * 16 + n: words as halves of 16 bits
///            are pairs of columns, as kBF16 has them, four times. Behind the last panel the scales
///            as they are stored, [panels, cols / group_cols, 16].
///   kI4:     as kF4E2M1; W[n, k] is a float32 value.
///   kI8:     W[n, k] = code * scale of row n; the code of (n, k) at byte k * 16 + n. Behind the
///            last panel the scales, [panels, 16].
/// With row_scales W[n, k] is multiplied by the scale of row n; they stand behind all else, 64-byte
/// aligned, [panels, 16].
struct PackedMatrix {
  PackedFormat format;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;  // 64-byte aligned
  int64_t panels_behind = 0;        // that data holds between the last panel and the scales
  int64_t panels_before = 0;        // whose scales precede those of panel 0

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  /// Rows [first, first + n), in the same memory; `first` starts a panel. The last panel may then
  /// hold other rows too.
  PackedMatrix Rows(int64_t first, int64_t n) const;
  PackedMatrix FirstRows(int64_t n) const { return Rows(0, n); }
  /// What belongs to panel p, of an 8-bit format.
  const float* scales(int64_t p) const;
  /// Panel p's scales, bytes of group_scale, of a 4-bit format.
  const uint8_t* group_scales(int64_t p) const;
  /// With row_scales: panel p's.
  const float* row_scales(int64_t p) const;

 private:
  int64_t AllPanels() const { return panels_before + panels() + panels_behind; }
  const std::byte* BehindPanels() const;
};

/// Float32 scales of one panel; 0 for formats without.
int64_t ScalesPerPanel(PackedFormat format, int64_t cols);

/// Bytes of one panel, without its scales, of a matrix with `cols` columns; a multiple of 64.
size_t PanelBytes(DType dtype, int64_t cols);

/// Bytes of a packed [rows, cols] matrix, a multiple of 64.
size_t PackedBytes(PackedFormat format, int64_t rows, int64_t cols);

/// Packs `count` (1..16) rows [count, cols] of float32 into one panel of kF32 or kBF16; missing
/// rows become zero. For kBF16 values are rounded to nearest even.
void PackPanel(DType dtype, const float* rows, int64_t count, int64_t cols, std::byte* panel);

/// Packs rows of e4m3 codes, which must not be NaN.
void PackFp8Panel(const uint8_t* rows, int64_t count, int64_t cols, std::byte* panel);

/// Packs `count` rows of codes of 4 bits, two to a byte with the even column in the lower half,
/// [count, cols / 2], and their scales as they are stored, [count, cols / group_cols], into panel p
/// of the matrix. Missing rows become zero.
void PackFourBitPanel(const PackedMatrix& matrix, int64_t p, const uint8_t* codes,
                      const uint8_t* group_scales, int64_t count);

/// Rounds rows of finite float32 to kI8: every row to whole multiples (nearest even) of its scale,
/// the largest magnitude in it / 127. Fills scales[16].
void PackInt8Panel(const float* rows, int64_t count, int64_t cols, std::byte* panel, float* scales);

}  // namespace outrider
