// How attention over the paged cache is cut into tiles and tasks (paged_attention.cc).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider::cpu {

inline constexpr int64_t kLargestTile = 64;  // (row, head) pairs
inline constexpr int64_t kTasksPerThread = 4;
/// Splits whose partials are merged with one another first.
inline constexpr int64_t kFoldedSplits = 4;

/// Both kinds of attention. Group g = h / heads_per_group of head h has for its key the elements
/// [g * own_step, ...) of an entry and those of the shared part, for its value the elements
/// [value + g * value_step, ...).
struct PagedArgs {
  MatrixView<const float> q;  // [rows, heads * (own_width + shared_width)]
  int64_t heads = 0;
  int64_t model_heads = 0;  // AbsorbedAttentionArgs'; 0: heads
  int64_t heads_per_group = 1;
  int64_t window = 0;  // keys that a row sees, its own included; 0: all
  int64_t own_width = 0;
  int64_t own_step = 0;
  int64_t shared = 0;
  int64_t shared_width = 0;
  int64_t value = 0;
  int64_t value_width = 0;
  int64_t value_step = 0;
  float scale = 0;
  LayerCache cache;
  std::span<const AttentionSpan> requests;
  MatrixView<float> out;  // [rows, heads * value_width]
  int64_t split = kPagedSplit;

  int64_t query_width() const { return own_width + shared_width; }
  /// Whether all heads attend to the same elements.
  bool one_group() const { return own_step == 0 && value_step == 0; }
  int64_t SplitsOf(int64_t keys) const { return (keys + split - 1) / split; }
};

/// Heads [first_head, last_head) of rows [first_row, last_row) of one request. With a window it has
/// one row, since rows of a tile must see the same first key.
struct Tile {
  const AttentionSpan* span;
  int64_t first_row, last_row;
  int64_t first_head, last_head;
  float* max;  // what is merged so far, [heads, rows]; the unnormalised output is in args.out
  float* sum;
  size_t first_task = 0;  // of the wave, in order of the splits
  size_t num_tasks = 0;

  int64_t rows() const { return last_row - first_row; }
  int64_t heads() const { return last_head - first_head; }
};

/// A softmax over some keys for the rows of a tile from first_row on, its output unnormalised.
struct Partial {
  int64_t first_row;
  int64_t rows;
  float* max;  // [heads, rows]
  float* sum;
  float* out;  // [heads, rows, PartialStride]

  int64_t Pair(int64_t head, int64_t row) const { return head * rows + row - first_row; }
};

/// Splits [first, last) of one tile, of one group, and the partial of all of them.
struct Task {
  const Tile* tile;
  int64_t first, last;
  Partial partial;
};

/// Number of keys that row j of a request sees.
inline int64_t Keys(const AttentionSpan& span, int64_t j) { return span.context_length + j + 1; }

/// The first key that row j of a request sees.
inline int64_t FirstKey(const PagedArgs& args, const AttentionSpan& span, int64_t j) {
  return args.window > 0 ? std::max<int64_t>(0, Keys(span, j) - args.window) : 0;
}

/// The splits [FirstSplit, Splits) are those with keys for a tile.
inline int64_t FirstSplit(const PagedArgs& args, const Tile& tile) {
  return FirstKey(args, *tile.span, tile.first_row) / args.split;
}
inline int64_t Splits(const PagedArgs& args, const Tile& tile) {
  return args.SplitsOf(Keys(*tile.span, tile.last_row - 1));
}

/// The first row of a tile that has keys in a split.
inline int64_t FirstRow(const PagedArgs& args, const Tile& tile, int64_t split) {
  return std::max<int64_t>(tile.first_row, split * args.split - tile.span->context_length);
}

/// The largest tile that leaves every thread several tasks, but `least` pairs at least.
int64_t TileSize(const PagedArgs& args, int64_t least, int threads);

/// Adds the tiles of `size` pairs at most, their state in scratch memory.
void CutTiles(const PagedArgs& args, int64_t size, Scratch& scratch, std::vector<Tile>& tiles);

/// Splits per task: a group, unless that would keep some threads waiting for the others, then 1.
int64_t SplitsOfTask(const PagedArgs& args, std::span<const Tile> tiles, int threads);

}  // namespace outrider::cpu
