// The leaf kernels of the CPU: the innermost loops, one set per instruction set. The drivers of
// this folder are shared by all sets; they make the tasks, own the scratch memory and check
// arguments. Only leaf kernels are compiled with instruction set flags, and they take plain
// pointers. So no inline function of a header is emitted with instructions that the machine may
// lack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cpu {

/// Rows and columns of an AMX tile of bfloat16.
inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileCols = 32;
/// Rows that attend_entries takes at a time on AMX.
inline constexpr int64_t kMostEntryRowsInTiles = 64;
/// Elements of a [rows, cols] matrix stored in tiles. Each 16 rows are a group; the last group may
/// have fewer. The tiles [rows of the group][kTileCols] of a group follow one another, with zeros
/// past the last column. Group g begins at element g * TiledElements(kTileRows, cols).
constexpr int64_t TiledElements(int64_t rows, int64_t cols) {
  return (cols + kTileCols - 1) / kTileCols * kTileCols * rows;
}

/// Some panels of one weight times a block of rows: y [rows, columns]. With kF8E4M3 the scales are
/// either multiplied into x by scale_row beforehand (then `scales` is null) or given in `scales`.
/// They are given with bf16_dot_order, and where powers of two meet more rows than
/// max_rows_widened_in_registers: multiplying widened weights then gives the same bits.
struct PanelProduct {
  DType format = DType::kBF16;
  const std::byte* panels = nullptr;  // num_panels panels of panel_bytes, one after the other
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t cols = 0;                   // K
  const float* const* x = nullptr;    // [rows] pointers to K floats each
  const BFloat16* x_tiles = nullptr;  // x in tiles, instead of x; only with bf16_dot_order
  int64_t rows = 0;
  bool bf16_dot_order = false;  // sums in the order of the bfloat16 instruction (MatMulJob)
  float* y = nullptr;           // [rows, columns], row r at y + r * y_stride
  int64_t y_stride = 0;
  int64_t columns = 0;            // at most 16 * num_panels
  bool accumulate = false;        // y += instead of y =
  const float* scales = nullptr;  // kI8: 16 per panel; kF8E4M3: scales_per_panel
  int64_t scales_per_panel = 0;
  int64_t scale_cols = 0;              // kF8E4M3: columns that share a scale
  const uint8_t* exponents = nullptr;  // kF4E2M1: [num_panels, cols / kFp4Group, 16]
  // Scratch, 64-byte aligned.
  float* sums = nullptr;     // PanelProductScratch(rows) floats; with x_tiles TileProductScratch
  float* widened = nullptr;  // kWidenedWeights floats
};

/// Panels that share one pass over a block of x.
inline constexpr int64_t kPanelGroup = 4;

constexpr int64_t PanelProductScratch(int64_t rows) { return kPanelGroup * 16 * rows; }

/// Panels of a group where rows are in tiles.
inline constexpr int64_t kTilePanelGroup = 16;

constexpr int64_t TileProductScratch(int64_t rows) {
  return kTilePanelGroup * 16 * ((rows + kTileRows - 1) / kTileRows * kTileRows);
}

/// Number of 8-bit weights that are widened to float32 at a time when many rows use them.
inline constexpr int64_t kWidenedWeights = 8192;

/// Independent sums in the loop that measures the FMA rate of the machine.
inline constexpr int kFmaChains = 12;

/// Most keys in one call of attend_keys.
inline constexpr int64_t kKeyBlock = 32;
/// Arrays over rows are padded to a multiple of this, so that each row has a vector lane.
inline constexpr int64_t kRowLanes = 8;
constexpr int64_t PaddedRows(int64_t rows) {
  return (rows + kRowLanes - 1) / kRowLanes * kRowLanes;
}

/// The width of a row of floats in scratch memory, rounded up to whole vectors.
constexpr int64_t PaddedWidth(int64_t width) { return (width + 15) / 16 * 16; }

/// One step of the running softmax: a block of keys for a set of rows. For every row r, over its
/// first visible[r] keys t:
///   s_t = scale * dot(q_r, k_t),  m' = max(m, max s_t),
///   l' = l exp(m - m') + sum exp(s_t - m'),  o' = o exp(m - m') + sum exp(s_t - m') v_t.
/// Keys past visible[r] do not influence row r, even if they hold NaN. Widths are multiples of 16,
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
  // q, keys, values, out and scores are aligned to 64 bytes. The cache entries of the next block,
  // if any, are prefetched while this block is computed.
  const std::byte* const* next_entries = nullptr;
  int64_t num_next = 0;
  int64_t entry_bytes = 0;
};

/// Parts of cache entries and of queries are padded to a multiple of this many elements.
inline constexpr int64_t kEntryLanes = 32;
constexpr int64_t PaddedPart(int64_t width) {
  return (width + kEntryLanes - 1) / kEntryLanes * kEntryLanes;
}
/// Elements from the scores of one key to those of the next. Tiles write a few past the last row.
constexpr int64_t ScoreStride(int64_t rows) { return PaddedRows(rows + 3); }
/// Score stride of attend_in_row_lanes: whole cache lines. Of 64 rows their number is no power of
/// two, so that the keys of a tile do not compete for the same lines of L1.
constexpr int64_t RowScoreStride(int64_t rows) { return PaddedWidth(rows) + 16; }

/// Rows of a block that attend to the same elements of the entries.
struct EntryGroup {
  int64_t rows = 0;
  int64_t key = 0;    // first element of the group's own part of a key
  int64_t value = 0;  // first element of the group's value
};

/// The softmax of a set of rows over at most one split of cache entries. Each group of rows (a
/// head, say) reads from entry e_t a key k_t, which is a part of its own and a part that all groups
/// share, and a value v_t. With kBF16 the elements of q_r and the weights p_t are rounded to
/// bfloat16 (nearest even). For every row r, over its first visible[r] entries:
///   s_t = scale * dot(q_r, k_t),  max = max s_t,  p_t = exp(s_t - max),
///   sum = sum p_t,  out = sum p_t v_t.
/// Entries past visible[r] do not influence row r, even if they hold NaN. An exponential below
/// exp(-64) may count as zero, here and in KeyBlock.
struct EntryBlock {
  const EntryGroup* groups = nullptr;
  int64_t num_groups = 0;
  int64_t rows = 0;                 // of all groups
  const float* const* q = nullptr;  // [rows] pointers to own_width + shared_width floats
  // From own_width or shared_width to its PaddedPart entries hold zeros; queries count as zero.
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
  // Scratch, aligned to 32 bytes. Consecutive blocks with the same rows share the packed queries in
  // `lanes` or `tiles`.
  float* lanes = nullptr;   // PaddedWidth(rows) * QueryLanes()
  float* scores = nullptr;  // num_keys * ScoreStride(rows) or, in row lanes, RowScoreStride(rows)
  // EntryTileElements(), aligned to 64 bytes, if AMX is to be used; else null.
  BFloat16* tiles = nullptr;
  bool packs_queries = true;  // false: they are packed since the block before
  // The next block's entries, to prefetch during this one: all with tiles, else the first ones.
  const std::byte* const* next_entries = nullptr;
  int64_t num_next = 0;
  // Only with tiles:
  bool is_prefetched = false;  // the block before named these entries in next_entries
  // max, sum and out hold a partial softmax, and this one is merged into it as by merge_partial.
  bool merges = false;

  int64_t QueryLanes() const { return PaddedPart(own_width) + PaddedPart(shared_width); }
  /// Elements of `tiles`: the queries, the scores (float32, so two elements each) of whole groups
  /// of 64 keys, the weights, four pieces of values (32 keys × 64 columns), and the outputs of 32
  /// rows.
  int64_t EntryTileElements() const {
    const int64_t keys = (num_keys + 63) / 64 * 64;
    const int64_t padded_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return padded_rows * (PaddedPart(own_width) + 3 * keys) + int64_t{4} * 32 * 64 +
           int64_t{2} * 33 * (value_width + 32);
  }
};

/// The leaf kernels of one instruction set.
struct LeafKernels {
  int64_t max_fp8_weights_as_bf16 = 0;  // KernelTable's

  void (*multiply_panels)(const PanelProduct& product);

  /// Up to this many rows 8-bit weights are widened in registers; for more, in memory beforehand.
  int64_t max_rows_widened_in_registers;

  /// y[k] = x[k] * scales[k / group], for k < n, times a power of two that multiply_panels of the
  /// same set takes out again. Its way of reading e4m3 codes needs that factor.
  void (*scale_row)(const float* x, const float* scales, int64_t group, int64_t n, float* y);

  /// Up to this many rows multiply_panels takes panels of kF4E2M1 with scales of kF8E8M0: rows of
  /// x, and rows in tiles.
  int64_t max_rows_of_fp4 = 0;
  int64_t max_tiled_rows_of_fp4 = 0;

  /// Widens one panel of kF4E2M1 [16, cols] with scales of kF8E8M0 to a panel of kBF16, 64-byte
  /// aligned, with the same values (PackedMatrix).
  void (*widen_fp4_panel)(const std::byte* codes, const uint8_t* exponents, int64_t cols,
                          BFloat16* to);
  /// Widens one panel with scales of kF8E4M3.
  void (*widen_nvfp4_panel)(const std::byte* codes, const uint8_t* scales, int64_t cols,
                            BFloat16* to);
  /// Widens one panel of kI4 [16, cols] to a panel of kF32, 64-byte aligned, with the same values.
  void (*widen_int4_panel)(const std::byte* codes, const BFloat16* scales, int64_t cols, float* to);

  /// The number of rows from which on products with weights of this format run in tiles, or 0 if
  /// the format has the plain order of sums. A format with a number above 0 has bf16_dot_order for
  /// any number of rows. Null if the set has no instruction that multiplies bfloat16. scale_cols:
  /// PackedFormat's.
  int64_t (*min_rows_for_tiles)(DType format, int64_t scale_cols) = nullptr;
  /// Nanoseconds per FMA in tiles with operands in a cache; used to choose tasks.
  double nanoseconds_per_tile_fma = 0;
  /// Rounds a group of up to kTileRows rows to bfloat16 and stores it in tiles.
  void (*round_to_tiles)(const float* const* x, int64_t rows, int64_t cols,
                         BFloat16* tiles) = nullptr;
  /// y[i] = x[i] rounded to bfloat16, for i < n.
  void (*round_to_bfloat16)(const float* x, int64_t n, float* y);

  void (*attend_keys)(const KeyBlock& block);
  void (*attend_entries)(const EntryBlock& block);
  /// attend_entries for one group of up to 64 rows and a shared_width of 0, with one row per vector
  /// lane. Its order of sums differs. Null if the set has no such kernel.
  void (*attend_in_row_lanes)(const EntryBlock& block) = nullptr;
  int64_t rows_per_vector = 0;
  /// Whether attend_entries runs on AMX for bfloat16 entries that all rows read alike, up to
  /// kMostEntryRowsInTiles rows.
  bool attends_in_tiles = false;

  /// Merges a partial softmax (maximum, sum, unnormalised out of n values) into a running one: both
  /// are scaled to the larger maximum and added.
  void (*merge_partial)(float partial_max, float partial_sum, const float* partial_out, int64_t n,
                        float& max, float& sum, float* out);

  /// x[i] /= divisor.
  void (*divide)(float divisor, int64_t n, float* x);

  /// y[i] = weight[i] * (x[i] / sqrt(mean of x^2 + eps)); y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);

  /// y[i] = min(silu(gate[i]), limit) * clamp(up[i], -limit, limit); NaN goes through.
  void (*silu_mul)(const float* gate, const float* up, float limit, int64_t n, float* y);

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
