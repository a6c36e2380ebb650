// Absorbed attention: a request's heads x rows are cut into tiles of rows, its positions into the
// fixed splits of kAbsorbedSplit. Every (tile, split) is a task that leaves a partial softmax; then
// each row merges its partials in order of the splits. Tiles only decide who computes a row, splits
// are fixed positions, so neither the number of threads nor other rows change a row's bits. Long
// contexts go in waves of splits, which bounds the memory for partials.

#include <algorithm>
#include <cstring>
#include <limits>
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
constexpr double kMergeShare = 0.02;             // of the time of the partials
constexpr double kNanosecondsPerCopy = 1.0 / 8;  // per element of a key that is widened

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
  float* out;  // [tile.last - first, PaddedWidth(L)]
};

int64_t SplitsOf(int64_t keys) { return (keys + kAbsorbedSplit - 1) / kAbsorbedSplit; }

class Call {
 public:
  Call(const LeafKernels& leaves, ThreadPool& pool, const AbsorbedAttentionArgs& args)
      : leaves_(leaves), pool_(pool), args_(args), padded_latent_(PaddedWidth(args.latent)) {}

  void Run(Scratch& scratch, std::vector<Tile>& tiles, std::vector<Task>& tasks) {
    const double nanoseconds = EstimateNanoseconds();
    CutTiles(nanoseconds < kInlineNanoseconds ? kLargestTile : TileRows(), scratch, tiles);
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
      sum += keys * (rows * (args_.cache.width + args_.latent) * kNanosecondsPerFma +
                     args_.cache.width * kNanosecondsPerCopy);
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
                     .out = scratch.Take<float>(rows * padded_latent_)});
  }

  void Attend(const Task& task) const {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    const Tile& tile = *task.tile;
    const AttentionSpan& span = *tile.span;
    const LatentCache& cache = args_.cache;
    const int64_t rows = tile.last - task.first;
    const int64_t width = PaddedWidth(cache.width);

    auto* q = scratch.Take<float>(rows * width);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = task.first + i;
      const float* from =
          args_.q.row(span.first_row + row / args_.heads) + row % args_.heads * cache.width;
      std::copy(from, from + cache.width, q + i * width);
      std::fill(q + i * width + cache.width, q + (i + 1) * width, 0.0f);
    }
    std::fill(task.max, task.max + rows, -std::numeric_limits<float>::infinity());
    std::fill(task.sum, task.sum + rows, 0.0f);
    std::fill(task.out, task.out + rows * padded_latent_, 0.0f);

    auto* keys = scratch.Take<float>(kKeyBlock * width);
    auto* visible = scratch.Take<int32_t>(rows);
    auto* scores = scratch.Take<float>(kKeyBlock * PaddedRows(rows));
    const int64_t begin = task.split * kAbsorbedSplit;
    const int64_t end = std::min(begin + kAbsorbedSplit, Keys(tile, tile.last - 1));
    const std::byte* entries[2][kKeyBlock];
    int64_t next = FindEntries(span, begin, end, entries[0]);
    for (int64_t first = begin, b = 0; first < end; first += kKeyBlock, b ^= 1) {
      const int64_t num_keys = next;
      next = FindEntries(span, first + kKeyBlock, end, entries[b ^ 1]);
      for (int64_t t = 0; t < num_keys; ++t) ReadEntry(entries[b][t], keys + t * width);
      for (int64_t i = 0; i < rows; ++i) {
        visible[i] = static_cast<int32_t>(
            std::clamp<int64_t>(Keys(tile, task.first + i) - first, 0, num_keys));
      }
      leaves_.attend_keys({.q = q,
                           .rows = rows,
                           .width = width,
                           .keys = keys,
                           .values = keys,
                           .num_keys = num_keys,
                           .value_width = padded_latent_,
                           .value_stride = width,
                           .visible = visible,
                           .scale = args_.scale,
                           .max = task.max,
                           .sum = task.sum,
                           .out = task.out,
                           .scores = scores,
                           .next_entries = entries[b ^ 1],
                           .num_next = next,
                           .entry_bytes = EntryBytes()});
    }
  }

  int64_t EntryBytes() const {
    return args_.cache.width * static_cast<int64_t>(DTypeSize(args_.cache.dtype));
  }

  /// Where the entries of up to kKeyBlock positions from `first` on are; returns how many there are
  /// before `end`.
  int64_t FindEntries(const AttentionSpan& span, int64_t first, int64_t end,
                      const std::byte** entries) const {
    const LatentCache& cache = args_.cache;
    const int64_t count = std::clamp<int64_t>(end - first, 0, kKeyBlock);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = first + i;
      const int64_t slot =
          int64_t{span.block_table[position / cache.block_size]} * cache.block_size +
          position % cache.block_size;
      entries[i] =
          cache.data + cache.SlotOffset(slot) * static_cast<int64_t>(DTypeSize(cache.dtype));
    }
    return count;
  }

  void ReadEntry(const std::byte* entry, float* key) const {
    const int64_t width = args_.cache.width;
    if (args_.cache.dtype == DType::kF32) {
      std::memcpy(key, entry, static_cast<size_t>(width) * sizeof(float));
    } else {
      leaves_.widen(reinterpret_cast<const BFloat16*>(entry), width, key);
    }
    std::fill(key + width, key + PaddedWidth(width), 0.0f);
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
        const float* partial = task.out + i * padded_latent_;
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
  int64_t padded_latent_;
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
