// Attention over the paged cache, absorbed and per head. A request's rows and heads are cut into
// tiles, its positions into splits of a fixed length, of which kFoldedSplits make a group.
// Every split of a tile leaves a partial softmax; those of a group are merged in order, then the
// groups are. A task is a group, whose thread merges as it goes along and fetches the next split's
// entries meanwhile, or where that would leave threads idle a split, whose partial waits for the
// others. Tiles and tasks only decide who computes a row, splits and groups are fixed positions, so
// neither the number of threads nor other rows change a row's bits. Long contexts go in waves of
// groups, which bounds the memory for partials. Longer than most files: both forms of attention are
// cut and merged by this code.

#include <algorithm>
#include <cstring>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/paged_tasks.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

constexpr double kNanosecondsPerFma = 1.0 / 40;
constexpr int64_t kLeastPairs = 4;  // (row, head) pairs of a tile that is cut to keep threads busy
// Vectors that the heads of one row fill at least, where rows are taken in lanes: with fewer,
// threads would have to share what cannot be cut into smaller tiles.
constexpr int64_t kLeastVectors = 4;
constexpr double kMergeShare = 0.02;  // of the time of the partials

class Call {
 public:
  // Floats from one row of a partial to the next: not a multiple of a page's part, so that the rows
  // of a tile do not compete for the same lines of L1.
  Call(const LeafKernels& leaves, ThreadPool& pool, const PagedArgs& args)
      : leaves_(leaves),
        pool_(pool),
        args_(args),
        in_tiles_(leaves.attends_in_tiles && args.one_group() && args.cache.dtype == DType::kBF16),
        in_row_lanes_(!in_tiles_ && leaves.attend_in_row_lanes != nullptr && args.one_group() &&
                      (args.model_heads > 0 ? args.model_heads : args.heads) >=
                          kLeastVectors * leaves.rows_per_vector),
        partial_stride_(PaddedPart(args.value_width) + 16) {}

  void Run(Scratch& scratch, std::vector<Tile>& tiles, std::vector<Task>& tasks) {
    const double nanoseconds = EstimateNanoseconds();
    const bool is_shared = pool_.size() > 1 && nanoseconds >= kInlineNanoseconds;
    const int64_t least = in_tiles_       ? kTileRows
                          : in_row_lanes_ ? leaves_.rows_per_vector
                                          : kLeastPairs;
    CutTiles(args_, is_shared ? TileSize(args_, least, pool_.size()) : kLargestTile, scratch,
             tiles);
    if (tiles.empty()) return;
    int64_t first_split = FirstSplit(args_, tiles.front());
    int64_t splits = 0;
    int64_t most_heads = 0;
    for (const Tile& tile : tiles) {
      first_split = std::min(first_split, FirstSplit(args_, tile));
      splits = std::max(splits, Splits(args_, tile));
      most_heads = std::max(most_heads, tile.heads());
    }
    const auto num_tiles = static_cast<int64_t>(tiles.size());
    const int64_t per_task = is_shared ? SplitsOfTask(args_, tiles, pool_.size()) : kFoldedSplits;
    const int64_t tasks_of_group = kFoldedSplits / per_task;
    const int64_t wave = kFoldedSplits * std::max<int64_t>(1, 2 * kTasksPerThread * pool_.size() /
                                                                  (num_tiles * tasks_of_group));
    first_split = first_split / kFoldedSplits * kFoldedSplits;
    const auto num_splits = static_cast<double>(splits - first_split);
    const double per_wave =
        nanoseconds * std::min(static_cast<double>(wave), num_splits) / num_splits;
    for (int64_t first = first_split; first < splits; first += wave) {
      const Scratch::Frame frame(scratch);
      tasks.clear();
      for (Tile& tile : tiles) {
        tile.first_task = tasks.size();
        const int64_t end = std::min(first + wave, Splits(args_, tile));
        for (int64_t split = std::max(first, FirstSplit(args_, tile)); split < end;) {
          // A task ends where one that began at a multiple of its splits would.
          const int64_t last = std::min((split / per_task + 1) * per_task, end);
          tasks.push_back({.tile = &tile,
                           .first = split,
                           .last = last,
                           .partial = TakePartial(tile, split, scratch)});
          split = last;
        }
        tile.num_tasks = tasks.size() - tile.first_task;
      }
      const Task* task = tasks.data();
      const auto num_tasks = static_cast<int64_t>(tasks.size());
      RunTasks(pool_, num_tasks, per_wave, [&](int64_t i) {
        // Threads take tasks in turn, and most take about the same time.
        const int64_t next = i + (is_shared ? pool_.size() : 1);
        Attend(task[i], next < num_tasks ? &task[next] : nullptr);
      });
      RunTasks(pool_, num_tiles * most_heads, per_wave * kMergeShare, [&](int64_t i) {
        const Tile& tile = tiles[static_cast<size_t>(i / most_heads)];
        if (i % most_heads < tile.heads()) Merge(tile, i % most_heads, task, first + wave);
      });
    }
  }

 private:
  double EstimateNanoseconds() const {
    double sum = 0;
    for (const AttentionSpan& span : args_.requests) {
      const int64_t seen = span.context_length + span.query_length;
      const auto keys = static_cast<double>(args_.window > 0 ? std::min(seen, args_.window) : seen);
      const double rows = static_cast<double>(span.query_length * args_.heads);
      sum += keys * rows * static_cast<double>(args_.query_width() + args_.value_width) *
             kNanosecondsPerFma;
    }
    return sum;
  }

  Partial TakePartial(const Tile& tile, int64_t split, Scratch& scratch) const {
    const int64_t first_row = FirstRow(args_, tile, split);
    const int64_t rows = tile.last_row - first_row;
    const int64_t pairs = rows * tile.heads();
    return {.first_row = first_row,
            .rows = rows,
            .max = scratch.Take<float>(pairs),
            .sum = scratch.Take<float>(pairs),
            .out = scratch.Take<float>(pairs * partial_stride_)};
  }

  /// A thread's scratch memory, and what it keeps from one split to the next.
  struct Thread {
    Scratch scratch;
    const std::byte* fetched = nullptr;  // the first of the entries that are fetched already
  };

  /// The task's partial. Meanwhile the first entries of the next task are fetched, if there is one.
  void Attend(const Task& task, const Task* next) const {
    thread_local Thread thread;
    const Scratch::Frame frame(thread.scratch);
    const EntryBlock largest = {.rows = task.partial.rows * task.tile->heads(),
                                .own_width = args_.own_width,
                                .shared_width = args_.shared_width,
                                .value_width = PaddedPart(args_.value_width),
                                .num_keys = args_.split};
    BFloat16* tiles = nullptr;
    float* lanes = nullptr;
    if (in_tiles_) {
      tiles = thread.scratch.Take<BFloat16>(largest.EntryTileElements());
    } else {
      lanes = thread.scratch.Take<float>(PaddedWidth(largest.rows) * largest.QueryLanes());
    }
    int64_t arranged_rows = 0;
    for (int64_t split = task.first; split < task.last; ++split) {
      const Scratch::Frame split_frame(thread.scratch);
      const Tile& tile = *task.tile;
      // The AMX kernel merges by itself if all rows have keys in the split.
      const bool merges =
          in_tiles_ && split > task.first && FirstRow(args_, tile, split) == task.partial.first_row;
      const Partial partial =
          split == task.first || merges ? task.partial : TakePartial(tile, split, thread.scratch);
      EntryBlock block = {.lanes = lanes,
                          .tiles = tiles,
                          .packs_queries = partial.rows != arranged_rows,
                          .merges = merges};
      arranged_rows = partial.rows;
      if (split + 1 < task.last) {
        FindNext(tile, split + 1, thread.scratch, block);
      } else if (next != nullptr) {
        FindNext(*next->tile, next->first, thread.scratch, block);
      }
      AttendSplit(tile, split, partial, thread, block);
      if (split == task.first || merges) continue;
      for (int64_t h = 0; h < tile.heads(); ++h) {
        for (int64_t j = partial.first_row; j < tile.last_row; ++j) {
          Fold(partial, h, j, task.partial);
        }
      }
    }
  }

  void FindNext(const Tile& tile, int64_t split, Scratch& scratch, EntryBlock& block) const {
    block.num_next = NumKeys(tile, split);
    block.next_entries = FindEntries(*tile.span, FirstKeyOf(tile, split), block.num_next, scratch);
  }

  /// The first key of a split that some of the tile's rows see, and how many.
  int64_t FirstKeyOf(const Tile& tile, int64_t split) const {
    return std::max(split * args_.split, FirstKey(args_, *tile.span, tile.first_row));
  }
  int64_t NumKeys(const Tile& tile, int64_t split) const {
    return std::min((split + 1) * args_.split, Keys(*tile.span, tile.last_row - 1)) -
           FirstKeyOf(tile, split);
  }

  void AttendSplit(const Tile& tile, int64_t split, const Partial& partial, Thread& thread,
                   EntryBlock& block) const {
    Scratch& scratch = thread.scratch;
    const AttentionSpan& span = *tile.span;
    const int64_t rows = partial.rows;
    const int64_t pairs = rows * tile.heads();
    const int64_t begin = FirstKeyOf(tile, split);
    const int64_t num_keys = NumKeys(tile, split);

    auto* q = scratch.Take<const float*>(pairs);
    auto* visible = scratch.Take<int32_t>(pairs);
    auto* groups = scratch.Take<EntryGroup>(tile.heads());
    int64_t num_groups = 0;
    int64_t pair = 0;
    for (int64_t h = tile.first_head; h < tile.last_head; ++h) {
      const int64_t group = h / args_.heads_per_group;
      if (num_groups == 0 || (!args_.one_group() && h % args_.heads_per_group == 0)) {
        groups[num_groups++] = {0, args_.own_step * group, args_.value + args_.value_step * group};
      }
      groups[num_groups - 1].rows += rows;
      for (int64_t j = partial.first_row; j < tile.last_row; ++j, ++pair) {
        q[pair] = args_.q.row(span.first_row + j) + h * args_.query_width();
        visible[pair] = static_cast<int32_t>(std::min(Keys(span, j) - begin, num_keys));
      }
    }
    block.groups = groups;
    block.num_groups = num_groups;
    block.rows = pairs;
    block.q = q;
    block.own_width = args_.own_width;
    block.shared = args_.shared;
    block.shared_width = args_.shared_width;
    block.value_width = PaddedPart(args_.value_width);
    block.dtype = args_.cache.dtype;
    block.entries = FindEntries(span, begin, num_keys, scratch);
    block.num_keys = num_keys;
    block.visible = visible;
    block.scale = args_.scale;
    block.max = partial.max;
    block.sum = partial.sum;
    block.out = partial.out;
    block.out_stride = partial_stride_;
    block.is_prefetched = block.entries[0] == thread.fetched;
    thread.fetched = block.num_next == 0 ? nullptr : block.next_entries[0];
    if (HasOddParts()) PadEntries(block, groups, scratch);
    if (in_row_lanes_) {
      block.scores = scratch.Take<float>(num_keys * RowScoreStride(pairs));
      leaves_.attend_in_row_lanes(block);
    } else {
      if (!in_tiles_) block.scores = scratch.Take<float>(num_keys * ScoreStride(pairs));
      leaves_.attend_entries(block);
    }
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
      const std::byte* entry =
          cache.data + cache.SlotOffset(slot) * static_cast<int64_t>(DTypeSize(cache.dtype));
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

  /// Merges the later partial of a row and head into another.
  void Fold(const Partial& partial, int64_t head, int64_t row, const Partial& into) const {
    const int64_t pair = into.Pair(head, row);
    FoldRow(partial, head, row, into.max[pair], into.sum[pair], into.out + pair * partial_stride_);
  }
  void FoldRow(const Partial& partial, int64_t head, int64_t row, float& max, float& sum,
               float* out) const {
    const int64_t pair = partial.Pair(head, row);
    leaves_.merge_partial(partial.max[pair], partial.sum[pair],
                          partial.out + pair * partial_stride_, args_.value_width, max, sum, out);
  }

  /// Merges the wave's partials into a tile's rows; the last one of a row also normalises it.
  void Merge(const Tile& tile, int64_t head, const Task* tasks, int64_t end_of_wave) const {
    const int64_t width = args_.value_width;
    for (int64_t row = tile.first_row; row < tile.last_row; ++row) {
      float* out = args_.out.row(tile.span->first_row + row) + (tile.first_head + head) * width;
      const int64_t state = head * tile.rows() + row - tile.first_row;
      const auto merge_group = [&](const Task* first) {
        if (first == nullptr) return;
        const Partial& group = first->partial;
        if (first->first > FirstSplit(args_, tile)) {
          FoldRow(group, head, row, tile.max[state], tile.sum[state], out);
          return;
        }
        const int64_t pair = group.Pair(head, row);
        tile.max[state] = group.max[pair];
        tile.sum[state] = group.sum[pair];
        std::copy_n(group.out + pair * partial_stride_, width, out);
      };
      const Task* group = nullptr;  // its first task
      for (size_t n = 0; n < tile.num_tasks; ++n) {
        const Task& task = tasks[tile.first_task + n];
        if (task.partial.first_row > row) break;
        if (group != nullptr && task.first % kFoldedSplits != 0) {
          Fold(task.partial, head, row, group->partial);
        } else {
          merge_group(group);
          group = &task;
        }
      }
      merge_group(group);
      const int64_t splits = args_.SplitsOf(Keys(*tile.span, row));
      if (group != nullptr && splits <= end_of_wave) leaves_.divide(tile.sum[state], width, out);
    }
  }

  const LeafKernels& leaves_;
  ThreadPool& pool_;
  const PagedArgs& args_;
  bool in_tiles_;      // on AMX
  bool in_row_lanes_;  // whatever the number of rows, as the order of sums is another one
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
                  .model_heads = args.model_heads,
                  .own_width = args.cache.width,
                  .value_width = args.latent,
                  .scale = args.scale,
                  .cache = args.cache,
                  .requests = args.requests,
                  .out = args.out,
                  .split = args.split});
}

void PerHeadAttention(const LeafKernels& leaves, ThreadPool& pool,
                      const PerHeadAttentionArgs& args) {
  CheckPerHead(args);
  const int64_t rotated = int64_t{args.kv_heads} * args.nope;
  PagedAttention(leaves, pool,
                 {.q = args.q,
                  .heads = args.heads,
                  .heads_per_group = args.heads / args.kv_heads,
                  .window = args.window,
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
