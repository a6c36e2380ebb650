// Attention over listed entries. A task is some heads of one row. Its list is cut into parts of
// kListedSplit entries, whose partial softmaxes are merged in order. Which heads share a task
// decides nothing but who computes them.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "outrider/base/error.h"
#include "outrider/base/rounded_exp.h"
#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

constexpr double kNanosecondsPerFma = 1.0 / 40;
constexpr int64_t kLeastHeads = 4;  // of a task, where rows are fewer than threads

class ListedCall {
 public:
  ListedCall(const LeafKernels& leaves, ThreadPool& pool, const ListedAttentionArgs& args)
      : leaves_(leaves),
        pool_(pool),
        args_(args),
        in_tiles_(leaves.attends_in_tiles && args.dtype == DType::kBF16),
        padded_(PaddedPart(args.width)) {}

  void Run() {
    const int64_t rows = args_.q.rows;
    const double nanoseconds = static_cast<double>(rows * args_.heads) * kNanosecondsPerFma *
                               static_cast<double>(2 * args_.most_entries * args_.width);
    const bool is_shared = pool_.size() > 1 && nanoseconds >= kInlineNanoseconds;
    const int64_t least = in_tiles_ ? kTileRows : kLeastHeads;
    const int64_t most = in_tiles_ ? kMostEntryRowsInTiles : args_.heads;
    const int64_t wanted = is_shared ? std::max<int64_t>(1, 2 * pool_.size() / rows) : 1;
    const int64_t parts = std::max(std::clamp<int64_t>(args_.heads / least, 1, wanted),
                                   (args_.heads + most - 1) / most);
    const int64_t heads = (args_.heads + parts - 1) / parts;
    RunTasks(pool_, rows * parts, nanoseconds, [&](int64_t i) {
      const int64_t first = i % parts * heads;
      Attend(i / parts, first, std::min<int64_t>(first + heads, args_.heads));
    });
  }

 private:
  void Attend(int64_t row, int64_t first_head, int64_t last_head) const {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    const int64_t heads = last_head - first_head;
    if (heads <= 0) return;
    OUTRIDER_CHECK(!in_tiles_ || heads <= kMostEntryRowsInTiles);
    auto* entries = scratch.Take<const std::byte*>(args_.most_entries);
    const int64_t count = args_.list(row, entries);
    OUTRIDER_CHECK(count >= 1 && count <= args_.most_entries);
    if (padded_ != args_.width) PadEntries(entries, count, scratch);
    auto* q = scratch.Take<const float*>(heads);
    auto* visible = scratch.Take<int32_t>(heads);
    for (int64_t h = 0; h < heads; ++h) q[h] = args_.q.row(row) + (first_head + h) * args_.width;
    const int64_t split = std::min<int64_t>(count, kListedSplit);
    const EntryGroup group = {.rows = heads, .key = 0, .value = 0};
    EntryBlock block = {.groups = &group,
                        .num_groups = 1,
                        .rows = heads,
                        .q = q,
                        .own_width = args_.width,
                        .value_width = padded_,
                        .dtype = args_.dtype,
                        .num_keys = split,
                        .visible = visible,
                        .scale = args_.scale,
                        // Not a multiple of a page's part, so that rows do not compete for lines.
                        .out_stride = padded_ + 16};
    if (in_tiles_) {
      block.tiles = scratch.Take<BFloat16>(block.EntryTileElements());
    } else {
      block.lanes = scratch.Take<float>(PaddedWidth(heads) * block.QueryLanes());
      block.scores = scratch.Take<float>(split * ScoreStride(heads));
    }
    const Softmax total = TakeSoftmax(heads, block.out_stride, scratch);
    for (int64_t first = 0; first < count; first += kListedSplit) {
      const Scratch::Frame of_split(scratch);
      const Softmax part = first == 0 ? total : TakeSoftmax(heads, block.out_stride, scratch);
      block.entries = entries + first;
      block.num_keys = std::min<int64_t>(count - first, kListedSplit);
      std::fill_n(visible, heads, static_cast<int32_t>(block.num_keys));
      block.max = part.max;
      block.sum = part.sum;
      block.out = part.out;
      leaves_.attend_entries(block);
      block.packs_queries = false;
      if (first == 0) continue;
      for (int64_t h = 0; h < heads; ++h) {
        leaves_.merge_partial(part.max[h], part.sum[h], part.out + h * block.out_stride,
                              args_.value_width, total.max[h], total.sum[h],
                              total.out + h * block.out_stride);
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      Finish(first_head + h, total.max[h], total.sum[h], total.out + h * block.out_stride,
             args_.out.row(row) + (first_head + h) * args_.value_width);
    }
  }

  struct Softmax {
    float* max;
    float* sum;
    float* out;
  };
  static Softmax TakeSoftmax(int64_t heads, int64_t stride, Scratch& scratch) {
    return {scratch.Take<float>(heads), scratch.Take<float>(heads),
            scratch.Take<float>(heads * stride)};
  }

  /// Entries of an odd width are copied and padded with zeros: what follows them may hold anything.
  void PadEntries(const std::byte** entries, int64_t count, Scratch& scratch) const {
    const size_t size = DTypeSize(args_.dtype);
    const size_t bytes = static_cast<size_t>(args_.width) * size;
    const size_t padded = static_cast<size_t>(padded_) * size;
    auto* copies = scratch.Take<std::byte>(static_cast<int64_t>(padded) * count);
    for (int64_t i = 0; i < count; ++i, copies += padded) {
      std::memcpy(copies, entries[i], bytes);
      std::memset(copies + bytes, 0, padded - bytes);
      entries[i] = copies;
    }
  }

  /// The sink takes part in the sum alone.
  void Finish(int64_t head, float max, float sum, const float* from, float* to) const {
    if (args_.sinks == nullptr) {
      std::copy_n(from, args_.value_width, to);
      leaves_.divide(sum, args_.value_width, to);
      return;
    }
    const float sink = args_.sinks[head];
    const float larger = std::max(max, sink);
    const float keep = RoundedExp(max - larger);
    const float all = sum * keep + RoundedExp(sink - larger);
    for (int64_t i = 0; i < args_.value_width; ++i) to[i] = from[i] * keep;
    leaves_.divide(all, args_.value_width, to);
  }

  const LeafKernels& leaves_;
  ThreadPool& pool_;
  const ListedAttentionArgs& args_;
  bool in_tiles_;  // on AMX
  int64_t padded_;
};

}  // namespace

void ListedAttention(const LeafKernels& leaves, ThreadPool& pool, const ListedAttentionArgs& args) {
  CheckListed(args);
  if (args.q.rows > 0) ListedCall(leaves, pool, args).Run();
}

}  // namespace outrider::cpu
