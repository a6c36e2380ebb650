// The innermost loops of the CPU backends, one set per instruction set. Task lists, scratch memory
// and checks are shared by all sets and live in the drivers of this folder; files compiled with
// instruction set flags hold leaves alone, over plain pointers, so that no inline function of a
// header is ever emitted with instructions that the machine may lack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cpu {

/// Rows and columns of a tile, as AMX takes them.
inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileCols = 32;
/// Elements of `rows` rows in tiles. Sixteen rows, or those that are left at the end, are a group:
/// its tiles [rows of the group][kTileCols] follow one another, columns past the last are zero, and
/// group g begins at g * TiledElements(kTileRows, cols).
constexpr int64_t TiledElements(int64_t rows, int64_t cols) {
  return (cols + kTileCols - 1) / kTileCols * kTileCols * rows;
}

/// Panels of one weight times a block of rows. With kF8E4M3, x has gone through scale_row, or there
/// are scales and more than most_rows_of_codes rows, or the order is the unit's.
struct PanelProduct {
  DType format = DType::kBF16;
  const std::byte* panels = nullptr;  // num_panels panels of panel_bytes, one after the other
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t cols = 0;                   // K
  const float* const* x = nullptr;    // [rows] pointers to K floats each
  const BFloat16* x_tiles = nullptr;  // the rows in tiles, in place of x; only with unit_order
  int64_t rows = 0;
  bool unit_order = false;  // x holds bfloat16 values, and sums have the order of their unit
  float* y = nullptr;       // [rows, columns], row r at y + r * y_stride
  int64_t y_stride = 0;
  int64_t columns = 0;            // at most 16 * num_panels
  bool accumulate = false;        // y += instead of y =
  const float* scales = nullptr;  // kI8: 16 per panel; kF8E4M3: scales_per_panel
  int64_t scales_per_panel = 0;
  int64_t scale_cols = 0;  // kF8E4M3: columns that share a scale
  // Scratch, 64-byte aligned.
  float* sums = nullptr;     // PanelProductScratch(rows) floats; with x_tiles TileProductScratch
  float* widened = nullptr;  // kWidenedWeights floats
};

/// Panels that share a pass over a block of x when there are more rows than that.
inline constexpr int64_t kPanelGroup = 4;

constexpr int64_t PanelProductScratch(int64_t rows) { return kPanelGroup * 16 * rows; }

/// The same where rows are in tiles.
inline constexpr int64_t kTilePanelGroup = 16;

constexpr int64_t TileProductScratch(int64_t rows) {
  return kTilePanelGroup * 16 * ((rows + kTileRows - 1) / kTileRows * kTileRows);
}

/// Weights that are widened at a time where many rows use them.
inline constexpr int64_t kWidenedWeights = 8192;

/// Sums that a loop which measures the rate of multiply-adds keeps at a time.
inline constexpr int kFmaChains = 12;

/// Key positions that one call of attend_keys takes at most.
inline constexpr int64_t kKeyBlock = 32;
/// Rows are handled in lanes: arrays over rows are padded to a multiple of this.
inline constexpr int64_t kRowLanes = 8;
constexpr int64_t PaddedRows(int64_t rows) {
  return (rows + kRowLanes - 1) / kRowLanes * kRowLanes;
}

/// Widths of rows of floats in scratch memory: whole vectors.
constexpr int64_t PaddedWidth(int64_t width) { return (width + 15) / 16 * 16; }

/// One block of keys for a set of rows, by the running softmax. For every row r, over its first
/// visible[r] keys t:
///   s_t = scale * dot(q_r, k_t),  m' = max(m, max s_t),
///   l' = l exp(m - m') + sum exp(s_t - m'),  o' = o exp(m - m') + sum exp(s_t - m') v_t.
/// Keys past visible[r] have no influence on row r, whatever they hold. Widths are multiples of 16,
/// padded with zeros.
struct KeyBlock {
  const float* q = nullptr;  // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  const float* keys = nullptr;    // [num_keys, width]
  const float* values = nullptr;  // [num_keys, value_width], a key's values value_stride apart
  int64_t num_keys = 0;           // 1 .. kKeyBlock
  int64_t value_width = 0;
  int64_t value_stride = 0;
  const int32_t* visible = nullptr;  // [rows], 0 .. num_keys
  float scale = 0;
  float* max = nullptr;     // m, [rows]; -infinity before the first key
  float* sum = nullptr;     // l, [rows]
  float* out = nullptr;     // o, [rows, value_width]
  float* scores = nullptr;  // scratch, kKeyBlock * PaddedRows(rows)
  // q, keys, values, out and scores are aligned to 64 bytes. While this block is computed, the
  // entries of the next one are fetched (there may be none).
  const std::byte* const* next_entries = nullptr;
  int64_t num_next = 0;
  int64_t entry_bytes = 0;
};

/// Parts of cache entries, and of queries, are padded to a multiple of this.
inline constexpr int64_t kEntryLanes = 32;
constexpr int64_t PaddedPart(int64_t width) {
  return (width + kEntryLanes - 1) / kEntryLanes * kEntryLanes;
}
/// Elements between the scores of one key and the next: tiles write a few past the last row.
constexpr int64_t ScoreStride(int64_t rows) { return PaddedRows(rows + 3); }
/// The same with rows in lanes: whole cache lines, and not a power of two of them for 64 rows, so
/// that the keys of a tile do not compete for the same lines of L1.
constexpr int64_t RowScoreStride(int64_t rows) { return PaddedWidth(rows) + 16; }

/// Rows of a block that attend to the same elements of the entries.
struct EntryGroup {
  int64_t rows = 0;
  int64_t key = 0;    // first element of the group's own part of a key
  int64_t value = 0;  // first element of the group's value
};

/// The softmax of a set of rows over up to a split of cache entries. Of every entry e_t each group
/// of rows takes a key k_t, an own part and a part that all groups share, and a value v_t. With
/// kBF16 the elements of q_r and the weights p_t are rounded to bfloat16 (nearest even). For
/// every row r, over its first visible[r] entries:
///   s_t = scale * dot(q_r, k_t),  max = max s_t,  p_t = exp(s_t - max),
///   sum = sum p_t,  out = sum p_t v_t.
/// Entries past visible[r] have no influence on row r, whatever they hold. An exponential below
/// exp(-64) may be taken as zero, here and in KeyBlock.
struct EntryBlock {
  const EntryGroup* groups = nullptr;
  int64_t num_groups = 0;
  int64_t rows = 0;                 // of all groups
  const float* const* q = nullptr;  // [rows] pointers to own_width + shared_width floats
  // Entries hold zeros, and queries are taken to, from a width to its PaddedPart.
  int64_t own_width = 0;
  int64_t shared = 0;  // first element of the shared part
  int64_t shared_width = 0;
  int64_t value_width = 0;  // a multiple of kEntryLanes
  DType dtype = DType::kBF16;
  const std::byte* const* entries = nullptr;  // [num_keys]
  int64_t num_keys = 0;
  const int32_t* visible = nullptr;  // [rows], 1 .. num_keys
  float scale = 0;                   // > 0
  float* max = nullptr;              // [rows]
  float* sum = nullptr;              // [rows]
  float* out = nullptr;              // [rows, value_width], row r at out + r * out_stride
  int64_t out_stride = 0;
  // Scratch, aligned to 32 bytes. Blocks with the same rows may share their queries in `lanes` or
  // `tiles` one after the other.
  float* lanes = nullptr;   // PaddedWidth(rows) * QueryLanes()
  float* scores = nullptr;  // num_keys * ScoreStride(rows); with rows in lanes RowScoreStride(rows)
  // EntryTileElements(), aligned to 64 bytes, where a matrix unit is to be used, else null.
  BFloat16* tiles = nullptr;
  bool arranges_queries = true;  // else they are there from the block before
  // To be fetched while this block is computed: with tiles all of them, else those that come first.
  const std::byte* const* next_entries = nullptr;
  int64_t num_next = 0;
  // Only with tiles:
  bool is_fetched = false;  // the block before had these entries as the next ones
  // max, sum and out hold a partial softmax, into which this one is merged as merge_partial does.
  bool merges = false;

  int64_t QueryLanes() const { return PaddedPart(own_width) + PaddedPart(shared_width); }
  /// Queries; scores of whole groups of 64 keys, two elements each; weights; four pieces of
  /// values, each 32 keys of 64 columns; outputs of 32 rows, or of 16 in 64s of columns.
  int64_t EntryTileElements() const {
    const int64_t keys = (num_keys + 63) / 64 * 64;
    const int64_t padded_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return padded_rows * (PaddedPart(own_width) + 3 * keys) + int64_t{4} * 32 * 64 +
           int64_t{2} * 33 * (value_width + 32);
  }
};

/// The leaves of one instruction set.
struct LeafKernels {
  int64_t few_weights = 0;  // kernel_table.h

  void (*multiply_panels)(const PanelProduct& product);

  /// Rows up to which 8-bit weights are widened in registers. For more they are widened first.
  int64_t most_rows_of_codes;

  /// y[k] = x[k] * scales[k / group], for k < n, times a power of two that multiply_panels of this
  /// set takes out again: what its way of reading e4m3 codes needs.
  void (*scale_row)(const float* x, const float* scales, int64_t group, int64_t n, float* y);

  /// Of a set with instructions that multiply bfloat16, else null. Products of rows of bfloat16
  /// with weights of some formats have the order of sums of these (kernel_table.h), whatever the
  /// number of rows: for those this is the number of rows from which on they are taken in tiles,
  /// for others 0. scale_cols: of kF8E4M3.
  int64_t (*least_rows_of_tiles)(DType format, int64_t scale_cols) = nullptr;
  /// With operands in a cache; for the choice of tasks.
  double nanoseconds_per_tile_fma = 0;
  /// A group of up to kTileRows rows, rounded to bfloat16, in tiles.
  void (*round_to_tiles)(const float* const* x, int64_t rows, int64_t cols,
                         BFloat16* tiles) = nullptr;
  /// y[i] = x[i] rounded to bfloat16, for i < n.
  void (*round_to_bfloat16)(const float* x, int64_t n, float* y);

  void (*attend_keys)(const KeyBlock& block);
  void (*attend_entries)(const EntryBlock& block);
  /// The same for one group of up to 64 rows with a shared_width of 0, rows_per_vector rows at a
  /// time, in another order of sums. Null where there is no such leaf.
  void (*attend_in_row_lanes)(const EntryBlock& block) = nullptr;
  int64_t rows_per_vector = 0;
  /// Whether bfloat16 entries that all rows attend to alike are taken by a matrix unit.
  bool attends_in_tiles = false;

  /// Merges a partial softmax (its maximum, sum and unnormalised out of n values) into a running
  /// one: both are scaled to the larger maximum and added.
  void (*merge_partial)(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                        float& max, float& sum, float* out);

  /// x[i] /= divisor.
  void (*divide)(float divisor, int64_t n, float* x);

  /// y[i] = weight[i] * (x[i] / sqrt(mean of x^2 + eps)); y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);

  /// y[i] = silu(gate[i]) * up[i].
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);

  /// Rotates the 2 * half values at x in place: pairs (2i, 2i + 1), or (i, i + half).
  void (*rotate)(const float* cos, const float* sin, int64_t half, bool interleaved, float* x);

  /// bfloat16 to float and back (nearest even).
  void (*widen)(const BFloat16* x, int64_t n, float* y);
  void (*narrow)(const float* x, int64_t n, BFloat16* y);

  /// out[i] += sum over j in order of weights[j] * y[j][i], a chain of FMAs from zero.
  void (*add_weighted)(const float* const* y, const float* weights, int64_t count, int64_t n,
                       float* out);
};

}  // namespace outrider::cpu
