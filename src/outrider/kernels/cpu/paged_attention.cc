// Attention over the paged cache, absorbed and per head. A request's rows and heads are cut into
// tiles, its positions into the fixed splits of kPagedSplit. Every (tile, split) is a task that
// leaves a partial softmax; then each row merges its partials in order of the splits. Tiles only
// decide who computes a row, splits are fixed positions, so neither the number of threads nor other
// rows change a row's bits. Long contexts go in waves of splits, which bounds the memory for
// partials.

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
constexpr int64_t kSmallestUnitTile = kTileRows;  // of a matrix unit
constexpr int64_t kTasksPerThread = 4;
constexpr double kNanosecondsPerFma = 1.0 / 40;
constexpr double kMergeShare = 0.02;  // of the time of the partials

/// Both kinds of attention: head h's key is the elements [own + h * own_step, ...) of an entry and
/// those of the shared part, its value the elements [value + h * value_step, ...).
struct PagedArgs {
  MatrixView<const float> q;  // [rows, heads * (own_width + shared_width)]
  int64_t heads = 0;
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

  int64_t query_width() const { return own_width + shared_width; }
  /// Whether all heads attend to the same elements.
  bool one_group() const { return own_step == 0 && value_step == 0; }
};

/// Heads [first_head, last_head) of rows [first_row, last_row) of one request.
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

/// One tile at one split, and its partial softmax.
struct Task {
  const Tile* tile;
  int64_t first_row;  // the first row of the tile that has keys in the split
  int64_t split;
  float* max;  // [heads, last_row - first_row]
  float* sum;
  float* out;  // [heads, last_row - first_row, PartialStride]

  int64_t rows() const { return tile->last_row - first_row; }
};

int64_t SplitsOf(int64_t keys) { return (keys + kPagedSplit - 1) / kPagedSplit; }

/// Number of keys that row j of a request sees.
int64_t Keys(const AttentionSpan& span, int64_t j) { return span.context_length + j + 1; }

class Call {
 public:
  // Floats from one row of a partial to the next: not a multiple of a page's part, so that the rows
  // of a tile do not compete for the same lines of L1.
  Call(const LeafKernels& leaves, ThreadPool& pool, const PagedArgs& args)
      : leaves_(leaves),
        pool_(pool),
        args_(args),
        in_tiles_(leaves.attends_in_tiles && args.one_group() && args.cache.dtype == DType::kBF16),
        partial_stride_(PaddedPart(args.value_width) + 16) {}

  void Run(Scratch& scratch, std::vector<Tile>& tiles, std::vector<Task>& tasks) {
    const double nanoseconds = EstimateNanoseconds();
    const bool is_shared = pool_.size() > 1 && nanoseconds >= kInlineNanoseconds;
    CutTiles(is_shared ? TileSize() : kLargestTile, scratch, tiles);
    if (tiles.empty()) return;
    const auto num_tiles = static_cast<int64_t>(tiles.size());
    const int64_t wave = std::max<int64_t>(1, 2 * kTasksPerThread * pool_.size() / num_tiles);
    int64_t splits = 0;
    for (const Tile& tile : tiles) {
      splits = std::max(splits, SplitsOf(Keys(*tile.span, tile.last_row - 1)));
    }
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
  double EstimateNanoseconds() const {
    double sum = 0;
    for (const AttentionSpan& span : args_.requests) {
      const double keys = span.context_length + span.query_length;
      const double rows = static_cast<double>(span.query_length * args_.heads);
      sum += keys * rows * static_cast<double>(args_.query_width() + args_.value_width) *
             kNanosecondsPerFma;
    }
    return sum;
  }

  /// Rows of a tile of `size` (row, head) pairs. Rows of one head share its keys: they come first.
  static int64_t RowsOfTile(const AttentionSpan& span, int64_t size) {
    return std::min<int64_t>(span.query_length, size);
  }
  int64_t HeadsOfTile(const AttentionSpan& span, int64_t size) const {
    return std::min(args_.heads, size / RowsOfTile(span, size));
  }

  /// The largest tile that leaves every thread several tasks.
  int64_t TileSize() const {
    const int64_t smallest = in_tiles_ ? kSmallestUnitTile : kSmallestTile;
    int64_t size = kLargestTile;
    for (; size > smallest; size /= 2) {
      int64_t tasks = 0;
      for (const AttentionSpan& span : args_.requests) {
        if (span.query_length == 0) continue;
        const int64_t rows = RowsOfTile(span, size);
        const int64_t heads = HeadsOfTile(span, size);
        tasks += ((span.query_length + rows - 1) / rows) * ((args_.heads + heads - 1) / heads) *
                 SplitsOf(Keys(span, span.query_length - 1));
      }
      if (tasks >= kTasksPerThread * pool_.size()) break;
    }
    return size;
  }

  void CutTiles(int64_t size, Scratch& scratch, std::vector<Tile>& tiles) const {
    for (const AttentionSpan& span : args_.requests) {
      if (span.query_length == 0) continue;
      const int64_t rows = RowsOfTile(span, size);
      const int64_t heads = HeadsOfTile(span, size);
      for (int64_t row = 0; row < span.query_length; row += rows) {
        for (int64_t head = 0; head < args_.heads; head += heads) {
          Tile tile = {.span = &span,
                       .first_row = row,
                       .last_row = std::min<int64_t>(row + rows, span.query_length),
                       .first_head = head,
                       .last_head = std::min(head + heads, args_.heads),
                       .max = nullptr,
                       .sum = nullptr};
          tile.max = scratch.Take<float>(tile.rows() * tile.heads());
          tile.sum = scratch.Take<float>(tile.rows() * tile.heads());
          tiles.push_back(tile);
        }
      }
    }
  }

  void AddTask(const Tile& tile, int64_t split, Scratch& scratch, std::vector<Task>& tasks) const {
    const int64_t first_row =
        std::max<int64_t>(tile.first_row, split * kPagedSplit - tile.span->context_length);
    if (first_row >= tile.last_row) return;
    const int64_t pairs = (tile.last_row - first_row) * tile.heads();
    tasks.push_back({.tile = &tile,
                     .first_row = first_row,
                     .split = split,
                     .max = scratch.Take<float>(pairs),
                     .sum = scratch.Take<float>(pairs),
                     .out = scratch.Take<float>(pairs * partial_stride_)});
  }

  void Attend(const Task& task) const {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    const Tile& tile = *task.tile;
    const AttentionSpan& span = *tile.span;
    const int64_t rows = task.rows();
    const int64_t pairs = rows * tile.heads();
    const int64_t begin = task.split * kPagedSplit;
    const int64_t num_keys = std::min<int64_t>(kPagedSplit, Keys(span, tile.last_row - 1) - begin);

    auto* q = scratch.Take<const float*>(pairs);
    auto* visible = scratch.Take<int32_t>(pairs);
    auto* groups = scratch.Take<EntryGroup>(tile.heads());
    int64_t num_groups = 0;
    int64_t pair = 0;
    for (int64_t h = tile.first_head; h < tile.last_head; ++h) {
      if (num_groups == 0 || !args_.one_group()) {
        groups[num_groups++] = {0, args_.own_step * h, args_.value + args_.value_step * h};
      }
      groups[num_groups - 1].rows += rows;
      for (int64_t j = task.first_row; j < tile.last_row; ++j, ++pair) {
        q[pair] = args_.q.row(span.first_row + j) + h * args_.query_width();
        visible[pair] = static_cast<int32_t>(std::min(Keys(span, j) - begin, num_keys));
      }
    }
    EntryBlock block = {.groups = groups,
                        .num_groups = num_groups,
                        .rows = pairs,
                        .q = q,
                        .own_width = args_.own_width,
                        .shared = args_.shared,
                        .shared_width = args_.shared_width,
                        .value_width = PaddedPart(args_.value_width),
                        .dtype = args_.cache.dtype,
                        .entries = FindEntries(span, begin, num_keys, scratch),
                        .num_keys = num_keys,
                        .visible = visible,
                        .scale = args_.scale,
                        .max = task.max,
                        .sum = task.sum,
                        .out = task.out,
                        .out_stride = partial_stride_};
    if (HasOddParts()) PadEntries(block, groups, scratch);
    block.lanes = scratch.Take<float>(pairs * block.QueryLanes());
    block.scores = scratch.Take<float>(num_keys * ScoreStride(pairs));
    if (in_tiles_) block.tiles = scratch.Take<BFloat16>(block.EntryTileElements());
    leaves_.attend_entries(block);
  }

  /// Where the entries of `count` positions from `first` on are.
  const std::byte** FindEntries(const AttentionSpan& span, int64_t first, int64_t count,
                                Scratch& scratch) const {
    const LayerCache& cache = args_.cache;
    const int64_t entry_bytes = cache.width * static_cast<int64_t>(DTypeSize(cache.dtype));
    auto* entries = scratch.Take<const std::byte*>(count);
    const int32_t* block = span.block_table + first / cache.block_size;
    int64_t offset = first % cache.block_size;
    for (int64_t i = 0; i < count; offset = 0, ++block) {
      const int64_t slot = int64_t{*block} * cache.block_size + offset;
      const std::byte* entry = cache.data + slot * entry_bytes;
      const int64_t end = std::min<int64_t>(count, i + cache.block_size - offset);
      for (; i < end; ++i, entry += entry_bytes) entries[i] = entry;
    }
    return entries;
  }

  bool HasOddParts() const {
    return args_.own_width % kEntryLanes != 0 || args_.shared_width % kEntryLanes != 0 ||
           args_.value_width % kEntryLanes != 0;
  }

  /// Parts of an odd width are copied to scratch memory and padded: what follows them in the cache
  /// may hold anything. The copies hold the groups' own parts, the shared part, the values.
  void PadEntries(EntryBlock& block, EntryGroup* groups, Scratch& scratch) const {
    const auto element_bytes = static_cast<int64_t>(DTypeSize(args_.cache.dtype));
    const int64_t own_padded = PaddedPart(args_.own_width);
    const int64_t shared_to = block.num_groups * own_padded;
    const int64_t values_to = shared_to + PaddedPart(args_.shared_width);
    const int64_t bytes = (values_to + block.num_groups * block.value_width) * element_bytes;
    auto* entries = scratch.Take<const std::byte*>(block.num_keys);
    for (int64_t i = 0; i < block.num_keys; ++i) {
      auto* copy = scratch.Take<std::byte>(bytes);
      std::memset(copy, 0, static_cast<size_t>(bytes));
      const auto copy_part = [&](int64_t from, int64_t width, int64_t to) {
        std::memcpy(copy + to * element_bytes, block.entries[i] + from * element_bytes,
                    static_cast<size_t>(width * element_bytes));
      };
      for (int64_t g = 0; g < block.num_groups; ++g) {
        copy_part(groups[g].key, args_.own_width, g * own_padded);
        copy_part(groups[g].value, args_.value_width, values_to + g * block.value_width);
      }
      copy_part(args_.shared, args_.shared_width, shared_to);
      entries[i] = copy;
    }
    for (int64_t g = 0; g < block.num_groups; ++g) {
      groups[g].key = g * own_padded;
      groups[g].value = values_to + g * block.value_width;
    }
    block.shared = shared_to;
    block.entries = entries;
  }

  /// Merges the wave's partials into a tile's rows; the last one of a row also normalises it.
  void Merge(const Tile& tile, const Task* tasks) const {
    const int64_t width = args_.value_width;
    for (size_t n = 0; n < tile.num_tasks; ++n) {
      const Task& task = tasks[tile.first_task + n];
      int64_t pair = 0;
      for (int64_t h = tile.first_head; h < tile.last_head; ++h) {
        for (int64_t j = task.first_row; j < tile.last_row; ++j, ++pair) {
          const int64_t state = (h - tile.first_head) * tile.rows() + j - tile.first_row;
          float& max = tile.max[state];
          float& sum = tile.sum[state];
          const float* partial = task.out + pair * partial_stride_;
          float* out = args_.out.row(tile.span->first_row + j) + h * width;
          if (task.split == 0) {
            max = task.max[pair];
            sum = task.sum[pair];
            std::copy(partial, partial + width, out);
          } else {
            leaves_.merge_partial(task.max[pair], task.sum[pair], partial, width, max, sum, out);
          }
          if (task.split + 1 == SplitsOf(Keys(*tile.span, j))) leaves_.divide(sum, width, out);
        }
      }
    }
  }

  const LeafKernels& leaves_;
  ThreadPool& pool_;
  const PagedArgs& args_;
  bool in_tiles_;  // of a matrix unit
  int64_t partial_stride_;
};

void PagedAttention(const LeafKernels& leaves, ThreadPool& pool, const PagedArgs& args) {
  thread_local Scratch scratch;
  thread_local std::vector<Tile> tiles;
  thread_local std::vector<Task> tasks;
  const Scratch::Frame frame(scratch);
  tiles.clear();
  Call(leaves, pool, args).Run(scratch, tiles, tasks);
}

}  // namespace

void AbsorbedAttention(const LeafKernels& leaves, ThreadPool& pool,
                       const AbsorbedAttentionArgs& args) {
  CheckAbsorbed(args);
  PagedAttention(leaves, pool,
                 {.q = args.q,
                  .heads = args.heads,
                  .own_width = args.cache.width,
                  .value_width = args.latent,
                  .scale = args.scale,
                  .cache = args.cache,
                  .requests = args.requests,
                  .out = args.out});
}

void PerHeadAttention(const LeafKernels& leaves, ThreadPool& pool,
                      const PerHeadAttentionArgs& args) {
  CheckPerHead(args);
  const int64_t rotated = int64_t{args.heads} * args.nope;
  PagedAttention(leaves, pool,
                 {.q = args.q,
                  .heads = args.heads,
                  .own_width = args.nope,
                  .own_step = args.nope,
                  .shared = rotated,
                  .shared_width = args.rope,
                  .value = rotated + args.rope,
                  .value_width = args.value,
                  .value_step = args.value,
                  .scale = args.scale,
                  .cache = args.cache,
                  .requests = args.requests,
                  .out = args.out});
}

}  // namespace outrider::cpu
