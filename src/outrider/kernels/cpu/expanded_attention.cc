// Expanded attention: a task is one head of a tile of a request's rows; it walks the request's
// blocks of keys in order, kKeyBlock keys at a time from the block's start, and carries the running
// softmax from and to the caller's memory. Blocks start at absolute multiples of kExpandedBlock, so
// a row's keys come in the same groups however the prompt was cut.

#include <algorithm>
#include <limits>
#include <vector>

#include "outrider/base/scratch.h"
#include "outrider/kernels/argument_checks.h"
#include "outrider/kernels/cpu/attention.h"
#include "outrider/kernels/cpu/task_size.h"

namespace outrider::cpu {

namespace {

constexpr int64_t kLargestTile = 256;
constexpr int64_t kSmallestTile = 8;
constexpr int64_t kTasksPerThread = 8;
constexpr double kNanosecondsPerFma = 1.0 / 40;

/// The blocks of one request, in rising order: [first, last) of the call's sorted list.
struct Request {
  size_t first, last;
};

struct Task {
  Request request;
  int64_t head;
  int64_t first_row, last_row;  // in the request
};

class Call {
 public:
  Call(const LeafKernels& leaves, ThreadPool& pool, const ExpandedAttentionArgs& args)
      : leaves_(leaves), pool_(pool), args_(args) {}

  void Run(std::vector<const ExpandedBlock*>& blocks, std::vector<Request>& requests,
           std::vector<Task>& tasks) {
    for (const ExpandedBlock& block : args_.blocks) blocks.push_back(&block);
    std::sort(blocks.begin(), blocks.end(), [](const ExpandedBlock* a, const ExpandedBlock* b) {
      return a->request.first_row != b->request.first_row
                 ? a->request.first_row < b->request.first_row
                 : a->first_key < b->first_key;
    });
    blocks_ = blocks.data();
    double nanoseconds = 0;
    int64_t rows = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const AttentionSpan& span = blocks[i]->request;
      const bool same_request = i > 0 && blocks[i - 1]->request.first_row == span.first_row;
      if (same_request) {
        requests.back().last = i + 1;
      } else {
        requests.push_back({i, i + 1});
        rows += span.query_length;
      }
      nanoseconds += static_cast<double>(span.query_length) * blocks[i]->num_keys * args_.heads *
                     (args_.nope + args_.rope + args_.value) * kNanosecondsPerFma;
    }
    int64_t tile = kLargestTile;
    while (tile > kSmallestTile && rows * args_.heads < kTasksPerThread * pool_.size() * tile) {
      tile /= 2;
    }
    for (const Request& request : requests) CutTiles(request, tile, tasks);
    const Task* task = tasks.data();
    RunTasks(pool_, static_cast<int64_t>(tasks.size()), nanoseconds,
             [&](int64_t i) { Attend(task[i]); });
  }

 private:
  /// Later rows see more keys: they come first, so that short tasks even out the end.
  void CutTiles(const Request& request, int64_t tile, std::vector<Task>& tasks) const {
    const int64_t rows = blocks_[request.first]->request.query_length;
    for (int64_t last = rows; last > 0; last -= std::min(tile, last)) {
      for (int64_t head = 0; head < args_.heads; ++head) {
        tasks.push_back({request, head, std::max<int64_t>(0, last - tile), last});
      }
    }
  }

  void Attend(const Task& task) const {
    thread_local Scratch scratch;
    const Scratch::Frame frame(scratch);
    const AttentionSpan& span = blocks_[task.request.first]->request;
    const int64_t rows = task.last_row - task.first_row;
    const int64_t first_row = span.first_row + task.first_row;
    const int64_t first_position = int64_t{span.context_length} + task.first_row;
    const int64_t nope = PaddedWidth(args_.nope);
    const int64_t width = nope + PaddedWidth(args_.rope);
    const int64_t value_width = PaddedWidth(args_.value);

    auto* q = scratch.Take<float>(rows * width);
    auto* out = scratch.Take<float>(rows * value_width);
    auto* max = scratch.Take<float>(rows);
    auto* sum = scratch.Take<float>(rows);
    const bool from_start = blocks_[task.request.first]->first_key == 0;
    for (int64_t i = 0; i < rows; ++i) {
      const float* from = args_.q.row(first_row + i) + task.head * (args_.nope + args_.rope);
      CopyPadded(from, args_.nope, q + i * width);
      CopyPadded(from + args_.nope, args_.rope, q + i * width + nope);
      if (from_start) {
        max[i] = -std::numeric_limits<float>::infinity();
        sum[i] = 0;
        std::fill(out + i * value_width, out + (i + 1) * value_width, 0.0f);
      } else {
        max[i] = args_.running_max.row(first_row + i)[task.head];
        sum[i] = args_.running_sum.row(first_row + i)[task.head];
        CopyPadded(args_.out.row(first_row + i) + task.head * args_.value, args_.value,
                   out + i * value_width);
      }
    }

    auto* keys = scratch.Take<float>(kKeyBlock * width);
    auto* values = scratch.Take<float>(kKeyBlock * value_width);
    auto* visible = scratch.Take<int32_t>(rows);
    auto* scores = scratch.Take<float>(kKeyBlock * PaddedRows(rows));
    const int64_t head_column = task.head * (args_.nope + args_.value);
    for (size_t b = task.request.first; b < task.request.last; ++b) {
      const ExpandedBlock& block = *blocks_[b];
      for (int64_t t = 0; t < block.num_keys; t += kKeyBlock) {
        const int64_t first_key = block.first_key + t;
        if (first_position + rows <= first_key) break;
        const int64_t num_keys = std::min(kKeyBlock, block.num_keys - t);
        for (int64_t i = 0; i < num_keys; ++i) {
          const int64_t row = block.kv_row + t + i;
          const float* kv = args_.kv.row(row) + head_column;
          CopyPadded(kv, args_.nope, keys + i * width);
          CopyPadded(args_.k_rope.row(row), args_.rope, keys + i * width + nope);
          CopyPadded(kv + args_.nope, args_.value, values + i * value_width);
        }
        const std::byte* next[kKeyBlock];
        const int64_t num_next = std::clamp<int64_t>(block.num_keys - t - kKeyBlock, 0, kKeyBlock);
        for (int64_t i = 0; i < num_next; ++i) {
          next[i] = reinterpret_cast<const std::byte*>(
              args_.kv.row(block.kv_row + t + kKeyBlock + i) + head_column);
        }
        // Rows before first_key see none of these keys and keep what they have.
        const int64_t skipped = std::max<int64_t>(0, first_key - first_position);
        for (int64_t i = skipped; i < rows; ++i) {
          visible[i] = static_cast<int32_t>(std::min(num_keys, first_position + i - first_key + 1));
        }
        leaves_.attend_keys(
            {.q = q + skipped * width,
             .rows = rows - skipped,
             .width = width,
             .keys = keys,
             .values = values,
             .num_keys = num_keys,
             .value_width = value_width,
             .value_stride = value_width,
             .visible = visible + skipped,
             .scale = args_.scale,
             .max = max + skipped,
             .sum = sum + skipped,
             .out = out + skipped * value_width,
             .scores = scores,
             .next_entries = next,
             .num_next = num_next,
             .entry_bytes = (args_.nope + args_.value) * static_cast<int64_t>(sizeof(float))});
      }
    }

    for (int64_t i = 0; i < rows; ++i) {
      args_.running_max.row(first_row + i)[task.head] = max[i];
      args_.running_sum.row(first_row + i)[task.head] = sum[i];
      std::copy(out + i * value_width, out + i * value_width + args_.value,
                args_.out.row(first_row + i) + task.head * args_.value);
    }
  }

  /// Copies n floats and fills up to PaddedWidth(n) with zeros.
  static void CopyPadded(const float* from, int64_t n, float* to) {
    std::copy(from, from + n, to);
    std::fill(to + n, to + PaddedWidth(n), 0.0f);
  }

  const LeafKernels& leaves_;
  ThreadPool& pool_;
  const ExpandedAttentionArgs& args_;
  const ExpandedBlock* const* blocks_ = nullptr;
};

}  // namespace

void ExpandedAttention(const LeafKernels& leaves, ThreadPool& pool,
                       const ExpandedAttentionArgs& args) {
  CheckExpanded(args);
  thread_local std::vector<const ExpandedBlock*> blocks;
  thread_local std::vector<Request> requests;
  thread_local std::vector<Task> tasks;
  blocks.clear();
  requests.clear();
  tasks.clear();
  Call(leaves, pool, args).Run(blocks, requests, tasks);
}

}  // namespace outrider::cpu
