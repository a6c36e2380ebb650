// CpuOps: the choice of entries, and attention to them. Rows are independent.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "outrider/base/token_order.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/cpu/lane_sums.h"
#include "outrider/ops/cpu/span_rows.h"

namespace outrider::cpu {

namespace {

/// x = weight * ((x - mean(x)) / sqrt(variance(x) + eps)) + bias, row by row.
void LayerNorm(const Context& context, MatrixView<float> x, const float* weight, const float* bias,
               float eps) {
  const auto n = static_cast<float>(x.cols);
  context.pool->ParallelFor(x.rows, [&](int64_t r, int /*thread*/) {
    float* row = x.row(r);
    float mean = 0;
    for (int64_t i = 0; i < x.cols; ++i) mean += row[i];
    mean /= n;
    for (int64_t i = 0; i < x.cols; ++i) row[i] -= mean;
    const float variance = LaneDot(row, row, x.cols) / n;
    const float inverse = 1.0F / std::sqrt(variance + eps);
    for (int64_t i = 0; i < x.cols; ++i) row[i] = weight[i] * (row[i] * inverse) + bias[i];
  });
}

/// Writes the numbers of the `top_k` largest scores to `chosen`, rising; the lower one of equals.
/// NaN is smaller than all.
void ChooseLargest(const std::vector<float>& scores, int32_t top_k, std::vector<int32_t>& order,
                   int32_t* chosen) {
  order.resize(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + top_k - 1, order.end(),
                   [&](int32_t a, int32_t b) {
                     const uint32_t of_a = OrderKey(scores[static_cast<size_t>(a)]);
                     const uint32_t of_b = OrderKey(scores[static_cast<size_t>(b)]);
                     return of_a != of_b ? of_a > of_b : a < b;
                   });
  std::copy_n(order.begin(), top_k, chosen);
  std::sort(chosen, chosen + top_k);
}

}  // namespace

void CpuOps::WriteIndexKeys(const Context& context, const StepInputs& inputs,
                            const IndexKeyArgs& args) const {
  LayerNorm(context, args.keys.floats(), args.norm, args.bias, args.norm_eps);
  Rotate(context, args.keys, 1, 0, args.rotary);
  WriteEntries(context, inputs, args.keys, args.cache);
}

SelectedEntries CpuOps::SelectEntries(const Context& context, const StepInputs& inputs,
                                      const SelectEntriesArgs& args) const {
  const std::span<const AttentionSpan> spans = Cast(inputs).one_path(args.keys.group);
  const MatrixView<float> q = args.q.floats();
  const MatrixView<float> weights = args.weights.floats();
  const int32_t dim = args.keys.width;
  OUTRIDER_CHECK(q.cols == int64_t{args.heads} * dim && weights.cols == args.heads);
  int32_t most = 0;
  for (const AttentionSpan& span : spans) {
    most = std::max(most, (span.context_length + span.query_length) / args.ratio);
  }
  // Rows of whole 16 bytes.
  const int64_t stride = (std::min(most, args.top_k) + 3) / 4 * 4;
  auto* entries = context.arena.Take<int32_t>(q.rows * stride);
  auto* counts = context.arena.Take<int32_t>(q.rows);
  const Scratch::Frame frame(context.arena);
  // The keys of requests that have to choose.
  auto* keys = context.arena.Take<MatrixView<float>>(static_cast<int64_t>(spans.size()));
  for (size_t s = 0; s < spans.size(); ++s) {
    const AttentionSpan& span = spans[s];
    const int32_t visible = (span.context_length + span.query_length) / args.ratio;
    if (visible <= args.top_k) continue;
    keys[s] = context.arena.Matrix(visible, dim);
    context.pool->ParallelFor(visible, [&](int64_t j, int /*thread*/) {
      float* to = keys[s].row(j);
      const int64_t slot = EntrySlot(args.keys, span.block_table, j);
      const float* from = LoadFloats(args.keys, slot, to);
      if (from != to) std::copy_n(from, dim, to);
    });
  }
  ForSpanRows(context, spans, [&](int32_t row, int32_t position, size_t s) {
    const int32_t visible = (position + 1) / args.ratio;
    int32_t* chosen = entries + row * stride;
    counts[row] = std::min(visible, args.top_k);
    if (visible <= args.top_k) {
      std::iota(chosen, chosen + visible, 0);
      return;
    }
    RowScratch& scratch = ScratchOfRow();
    scratch.values.assign(q.row(row), q.row(row) + q.cols);
    if (HoldsCodes(args.keys)) {
      for (int32_t h = 0; h < args.heads; ++h) {
        RoundIndexQuery(args.keys, scratch.values.data() + int64_t{h} * dim);
      }
    }
    scratch.scores.resize(static_cast<size_t>(visible));
    for (int32_t j = 0; j < visible; ++j) {
      float score = 0;
      for (int32_t h = 0; h < args.heads; ++h) {
        const float dot = LaneDot(scratch.values.data() + int64_t{h} * dim, keys[s].row(j), dim);
        score += std::max(0.0F, dot) * weights.row(row)[h];  // 0 of NaN, as on a GPU
      }
      scratch.scores[static_cast<size_t>(j)] = score;
    }
    ChooseLargest(scratch.scores, args.top_k, scratch.order, chosen);
  });
  return {entries, counts, stride};
}

void CpuOps::SelectedAttention(const Context& context, const StepInputs& inputs,
                               const SelectedAttentionArgs& args) const {
  const LayerCache& cache = args.entries;
  OUTRIDER_CHECK(args.q.cols == int64_t{args.heads} * cache.width);
  const std::span<const AttentionSpan> spans = Cast(inputs).one_path(cache.group);
  const Scratch::Frame frame(context.arena);
  // Spans of the rows of the call.
  auto* span_of = context.arena.Take<int32_t>(args.q.rows);
  for (size_t s = 0; s < spans.size(); ++s) {
    const int64_t first = int64_t{spans[s].first_row} - args.first_row;
    const int64_t end = std::min<int64_t>(first + spans[s].query_length, args.q.rows);
    for (int64_t r = std::max<int64_t>(first, 0); r < end; ++r) {
      span_of[r] = static_cast<int32_t>(s);
    }
  }
  const int32_t* counts = args.selected->counts + args.first_row;
  const int64_t most = args.q.rows == 0 ? 0 : *std::max_element(counts, counts + args.q.rows);
  const DType dtype = LoadedType(cache);
  const auto entry_bytes = static_cast<size_t>(cache.width) * DTypeSize(dtype);
  const auto list = [&](int64_t row, const std::byte** entries) {
    const AttentionSpan& span = spans[static_cast<size_t>(span_of[row])];
    const int32_t* chosen = args.selected->entries + (args.first_row + row) * args.selected->stride;
    std::vector<std::byte>& buffer = ScratchOfRow().entries;
    if (HoldsCodes(cache)) buffer.resize(static_cast<size_t>(most) * entry_bytes);
    for (int32_t i = 0; i < counts[row]; ++i) {
      std::byte* decoded = nullptr;  // entries that are not codes are read where they are
      if (HoldsCodes(cache)) decoded = buffer.data() + static_cast<size_t>(i) * entry_bytes;
      entries[i] = LoadEntry(cache, EntrySlot(cache, span.block_table, chosen[i]), decoded);
    }
    return int64_t{counts[row]};
  };
  kernels_.listed_attention(*context.pool,
                            {.q = args.q.floats(),
                             .heads = args.heads,
                             .width = cache.width,
                             .value_width = static_cast<int32_t>(args.out.cols / args.heads),
                             .scale = args.softmax_scale,
                             .sinks = nullptr,
                             .dtype = dtype,
                             .most_entries = most,
                             .out = args.out.floats(),
                             .list = list});
}

}  // namespace outrider::cpu
