#include "outrider/kernels/cpu/paged_tasks.h"

#include "outrider/kernels/cpu/leaf_kernels.h"

namespace outrider::cpu {

namespace {

// What tasks of groups gain over tasks of splits.
constexpr double kGroupGain = 1.15;

/// Rows of a tile of `size` (row, head) pairs. Rows of one head share its keys: they come first.
int64_t RowsOfTile(const PagedArgs& args, const AttentionSpan& span, int64_t size) {
  return args.window > 0 ? 1 : std::min<int64_t>(span.query_length, size);
}
int64_t HeadsOfTile(const PagedArgs& args, const AttentionSpan& span, int64_t size) {
  return std::min(args.heads, size / RowsOfTile(args, span, size));
}

}  // namespace

int64_t TileSize(const PagedArgs& args, int64_t least, int threads) {
  int64_t size = kLargestTile;
  for (; size > least; size /= 2) {
    int64_t tasks = 0;
    for (const AttentionSpan& span : args.requests) {
      if (span.query_length == 0) continue;
      const int64_t rows = RowsOfTile(args, span, size);
      const int64_t heads = HeadsOfTile(args, span, size);
      const int64_t last = span.query_length - 1;
      tasks += ((span.query_length + rows - 1) / rows) * ((args.heads + heads - 1) / heads) *
               args.SplitsOf(Keys(span, last) - FirstKey(args, span, last));
    }
    if (tasks >= kTasksPerThread * threads) break;
  }
  return size;
}

void CutTiles(const PagedArgs& args, int64_t size, Scratch& scratch, std::vector<Tile>& tiles) {
  for (const AttentionSpan& span : args.requests) {
    if (span.query_length == 0) continue;
    const int64_t rows = RowsOfTile(args, span, size);
    const int64_t heads = HeadsOfTile(args, span, size);
    for (int64_t row = 0; row < span.query_length; row += rows) {
      for (int64_t head = 0; head < args.heads; head += heads) {
        Tile tile = {.span = &span,
                     .first_row = row,
                     .last_row = std::min<int64_t>(row + rows, span.query_length),
                     .first_head = head,
                     .last_head = std::min(head + heads, args.heads),
                     .max = nullptr,
                     .sum = nullptr};
        tile.max = scratch.Take<float>(tile.rows() * tile.heads());
        tile.sum = scratch.Take<float>(tile.rows() * tile.heads());
        tiles.push_back(tile);
      }
    }
  }
}

int64_t SplitsOfTask(const PagedArgs& args, std::span<const Tile> tiles, int threads) {
  thread_local std::vector<int64_t> load;  // of each thread, in splits
  load.assign(static_cast<size_t>(threads), 0);
  int64_t splits = 0;
  int64_t groups = 0;
  for (const Tile& tile : tiles) {
    for (int64_t left = Splits(args, tile) - FirstSplit(args, tile); left > 0;
         left -= kFoldedSplits, ++groups) {
      if (groups == kTasksPerThread * threads) return kFoldedSplits;
      const int64_t taken = std::min(left, kFoldedSplits);
      *std::min_element(load.begin(), load.end()) += taken;
      splits += taken;
    }
  }
  const double longest = static_cast<double>(*std::max_element(load.begin(), load.end()));
  return longest * threads <= kGroupGain * static_cast<double>(splits) ? kFoldedSplits : 1;
}

}  // namespace outrider::cpu
