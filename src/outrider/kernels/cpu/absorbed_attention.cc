// Absorbed attention: a request's heads x rows are cut into tiles of rows, its positions into the
// fixed splits of kAbsorbedSplit. Every (tile, split) is a task that leaves a partial softmax; then
// each row merges its partials in order of the splits. Tiles only decide who computes a row, splits
// are fixed positions, so neither the number of threads nor other rows change a row's bits. Long
// contexts go in waves of splits, which bounds the memory for partials.

#include <algorithm>
#include <cstring>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

constexpr int64_t kLargestTile = 64;
constexpr int64_t kSmallestTile = 4;
constexpr int64_t kTasksPerThread = 4;
constexpr double kNanosecondsPerFma = 1.0 / 40;
constexpr double kMergeShare = 0.02;  // of the time of the partials

/// Rows [first, last) of one request, counted as (row in the request) * heads + head.
struct Tile {
  const AttentionSpan* span;
  int64_t first, last;
  float* max;  // what is merged so far, [last - first]; the unnormalised output is in args.out
  float* sum;
  size_t first_task = 0;  // of the wave, in order of the splits
  size_t num_tasks = 0;
};

/// One tile at one split, and its partial softmax.
struct Task {
  const Tile* tile;
  int64_t first;  // the first row of the tile that has keys in the split
  int64_t split;
  float* max;  // [tile.last - first]
  float* sum;
  float* out;  // [tile.last - first, PartialStride(L)]
};

/// Floats from one row of a partial to the next; not a multiple of a page's part, so that the rows
/// of a tile do not compete for the same lines of L1.
int64_t PartialStride(int64_t latent) { return PaddedLatent(latent) + 16; }

int64_t SplitsOf(int64_t keys) { return (keys + kAbsorbedSplit - 1) / kAbsorbedSplit; }

class Call {
 public:
  Call(const LeafKernels& leaves, ThreadPool& pool, const AbsorbedAttentionArgs& args)
      : leaves_(leaves), pool_(pool), args_(args), partial_stride_(PartialStride(args.latent)) {}

  void Run(Scratch& scratch, std::vector<Tile>& tiles, std::vector<Task>& tasks) {
    const double nanoseconds = EstimateNanoseconds();
    const bool is_shared = pool_.size() > 1 && nanoseconds >= kInlineNanoseconds;
    CutTiles(is_shared ? TileRows() : kLargestTile, scratch, tiles);
    if (tiles.empty()) return;
    const auto num_tiles = static_cast<int64_t>(tiles.size());
    const int64_t wave = std::max<int64_t>(1, 2 * kTasksPerThread * pool_.size() / num_tiles);
    int64_t splits = 0;
    for (const Tile& tile : tiles) splits = std::max(splits, SplitsOf(Keys(tile, tile.last - 1)));
    const double per_wave =
        nanoseconds * static_cast<double>(std::min(wave, splits)) / static_cast<double>(splits);
    for (int64_t first = 0; first < splits; first += wave) {
      const Scratch::Frame frame(scratch);
      tasks.clear();
      for (Tile& tile : tiles) {
        tile.first_task = tasks.size();
        for (int64_t split = first; split < std::min(first + wave, splits); ++split) {
          AddTask(tile, split, scratch, tasks);
        }
        tile.num_tasks = tasks.size() - tile.first_task;
      }
      const Task* task = tasks.data();
      RunTasks(pool_, static_cast<int64_t>(tasks.size()), per_wave,
               [&](int64_t i) { Attend(task[i]); });
      RunTasks(pool_, num_tiles, per_wave * kMergeShare,
               [&](int64_t i) { Merge(tiles[static_cast<size_t>(i)], task); });
    }
  }

 private:
  /// Number of keys that row i of the tile's request sees.
  int64_t Keys(const Tile& tile, int64_t i) const {
    return tile.span->context_length + i / args_.heads + 1;
  }

  double EstimateNanoseconds() const {
    double sum = 0;
    for (const AttentionSpan& span : args_.requests) {
      const double keys = span.context_length + span.query_length;
      const double rows = static_cast<double>(span.query_length) * args_.heads;
      sum += keys * rows * (args_.cache.width + args_.latent) * kNanosecondsPerFma;
    }
    return sum;
  }

  /// The largest tile that leaves every thread several tasks.
  int64_t TileRows() const {
    int64_t rows = kLargestTile;
    for (; rows > kSmallestTile; rows /= 2) {
      int64_t tasks = 0;
      for (const AttentionSpan& span : args_.requests) {
        tasks += (int64_t{span.query_length} * args_.heads + rows - 1) / rows *
                 SplitsOf(int64_t{span.context_length} + span.query_length);
      }
      if (tasks >= kTasksPerThread * pool_.size()) break;
    }
    return rows;
  }

  void CutTiles(int64_t tile_rows, Scratch& scratch, std::vector<Tile>& tiles) const {
    for (const AttentionSpan& span : args_.requests) {
      const int64_t rows = int64_t{span.query_length} * args_.heads;
      for (int64_t first = 0; first < rows; first += tile_rows) {
        const int64_t last = std::min(first + tile_rows, rows);
        tiles.push_back({.span = &span,
                         .first = first,
                         .last = last,
                         .max = scratch.Take<float>(last - first),
                         .sum = scratch.Take<float>(last - first)});
      }
    }
  }

  void AddTask(const Tile& tile, int64_t split, Scratch& scratch, std::vector<Task>& tasks) const {
    const int64_t first_position = split * kAbsorbedSplit;
    const int64_t first_row_in_request =
        std::max<int64_t>(0, first_position - tile.span->context_length);
    const int64_t first = std::max(tile.first, first_row_in_request * args_.heads);
    if (first >= tile.last) return;
    const int64_t rows = tile.last - first;
    tasks.push_back({.tile = &tile,
                     .first = first,
                     .split = split,
                     .max = scratch.Take<float>(rows),
                     .sum = scratch.Take<float>(rows),
                     .out = scratch.Take<float>(rows * partial_stride_)});
  }

  void Attend(const Task& task) const {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    const Tile& tile = *task.tile;
    const AttentionSpan& span = *tile.span;
    const int64_t rows = tile.last - task.first;
    const int64_t begin = task.split * kAbsorbedSplit;
    const int64_t num_keys = std::min<int64_t>(kAbsorbedSplit, Keys(tile, tile.last - 1) - begin);

    auto* q = scratch.Take<const float*>(rows);
    auto* visible = scratch.Take<int32_t>(rows);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = task.first + i;
      q[i] =
          args_.q.row(span.first_row + row / args_.heads) + row % args_.heads * args_.cache.width;
      visible[i] = static_cast<int32_t>(std::min(Keys(tile, row) - begin, num_keys));
    }
    leaves_.attend_latents({.q = q,
                            .rows = rows,
                            .query_width = args_.cache.width,
                            .dtype = args_.cache.dtype,
                            .entries = FindEntries(span, begin, num_keys, scratch),
                            .num_keys = num_keys,
                            .value_width = PaddedLatent(args_.latent),
                            .visible = visible,
                            .scale = args_.scale,
                            .max = task.max,
                            .sum = task.sum,
                            .out = task.out,
                            .out_stride = partial_stride_,
                            .lanes = scratch.Take<float>(rows * PaddedLatent(args_.cache.width)),
                            .scores = scratch.Take<float>(num_keys * ScoreStride(rows))});
  }

  /// Where the entries of `count` positions from `first` on are. Entries of an odd width are copied
  /// to scratch memory and padded: what follows them in the cache may hold anything.
  const std::byte* const* FindEntries(const AttentionSpan& span, int64_t first, int64_t count,
                                      Scratch& scratch) const {
    const LatentCache& cache = args_.cache;
    const auto element_bytes = static_cast<int64_t>(DTypeSize(cache.dtype));
    auto* entries = scratch.Take<const std::byte*>(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = first + i;
      const int64_t slot =
          int64_t{span.block_table[position / cache.block_size]} * cache.block_size +
          position % cache.block_size;
      entries[i] = cache.data + cache.SlotOffset(slot) * element_bytes;
    }
    if (cache.width % kLatentLanes == 0) return entries;
    const auto bytes = static_cast<size_t>(cache.width * element_bytes);
    const auto padded_bytes = static_cast<size_t>(PaddedLatent(cache.width) * element_bytes);
    for (int64_t i = 0; i < count; ++i) {
      auto* copy = scratch.Take<std::byte>(static_cast<int64_t>(padded_bytes));
      std::memcpy(copy, entries[i], bytes);
      std::memset(copy + bytes, 0, padded_bytes - bytes);
      entries[i] = copy;
    }
    return entries;
  }

  /// Merges the wave's partials into a tile's rows; the last one of a row also normalises it.
  void Merge(const Tile& tile, const Task* tasks) const {
    const int64_t heads = args_.heads;
    for (size_t n = 0; n < tile.num_tasks; ++n) {
      const Task& task = tasks[tile.first_task + n];
      for (int64_t row = task.first; row < tile.last; ++row) {
        const int64_t i = row - task.first;
        float& max = tile.max[row - tile.first];
        float& sum = tile.sum[row - tile.first];
        const float* partial = task.out + i * partial_stride_;
        float* out = args_.out.row(tile.span->first_row + row / heads) + row % heads * args_.latent;
        if (task.split == 0) {
          max = task.max[i];
          sum = task.sum[i];
          std::copy(partial, partial + args_.latent, out);
        } else {
          leaves_.merge_partial(task.max[i], task.sum[i], partial, args_.latent, max, sum, out);
        }
        if (task.split + 1 == SplitsOf(Keys(tile, row))) leaves_.divide(sum, args_.latent, out);
      }
    }
  }

  const LeafKernels& leaves_;
  ThreadPool& pool_;
  const AbsorbedAttentionArgs& args_;
  int64_t partial_stride_;
};

}  // namespace

void AbsorbedAttention(const LeafKernels& leaves, ThreadPool& pool,
                       const AbsorbedAttentionArgs& args) {
  CheckAbsorbed(args);
  thread_local Scratch scratch;
  thread_local std::vector<Tile> tiles;
  thread_local std::vector<Task> tasks;
  const Scratch::Frame frame(scratch);
  tiles.clear();
  Call(leaves, pool, args).Run(scratch, tiles, tasks);
}

}  // namespace outrider::cpu
