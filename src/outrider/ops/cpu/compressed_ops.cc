// CpuOps: DeepSeek-V4's attention, in plain float32. Rows are independent.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "outrider/base/rounded_exp.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/lane_sums.h"
#include "outrider/ops/rotary_angles.h"

namespace outrider::cpu {

namespace {

/// The entry at `index` of a request's table, as float32: in the cache itself, or in `buffer`.
const float* EntryAt(const LayerCache& cache, const int32_t* block_table, int64_t index,
                     float* buffer) {
  const int64_t slot =
      int64_t{block_table[index / cache.block_size]} * cache.block_size + index % cache.block_size;
  const int64_t offset = cache.SlotOffset(slot);
  if (cache.dtype == DType::kF32) return reinterpret_cast<const float*>(cache.data) + offset;
  const auto* narrow = reinterpret_cast<const BFloat16*>(cache.data) + offset;
  for (int32_t i = 0; i < cache.width; ++i) buffer[i] = ToFloat(narrow[i]);
  return buffer;
}

void StoreEntry(const LayerCache& cache, int64_t slot, const float* values) {
  const int64_t offset = cache.SlotOffset(slot);
  if (cache.dtype == DType::kF32) {
    std::copy_n(values, cache.width, reinterpret_cast<float*>(cache.data) + offset);
    return;
  }
  auto* narrow = reinterpret_cast<BFloat16*>(cache.data) + offset;
  for (int32_t i = 0; i < cache.width; ++i) narrow[i] = ToBFloat16(values[i]);
}

/// Calls run(row, position, index of the row's span) for every row of the spans, in parallel.
template <typename Run>
void ForSpanRows(const Context& context, std::span<const AttentionSpan> spans, Run run) {
  int64_t rows = 0;
  for (const AttentionSpan& span : spans) rows += span.query_length;
  const Scratch::Frame frame(context.arena);
  auto* span_of = context.arena.Take<int32_t>(rows);
  auto* row_of = context.arena.Take<int32_t>(rows);
  int64_t next = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    for (int32_t i = 0; i < spans[s].query_length; ++i, ++next) {
      span_of[next] = static_cast<int32_t>(s);
      row_of[next] = spans[s].first_row + i;
    }
  }
  context.pool->ParallelFor(rows, [&](int64_t i, int /*thread*/) {
    const AttentionSpan& span = spans[static_cast<size_t>(span_of[i])];
    run(row_of[i], span.context_length + row_of[i] - span.first_row,
        static_cast<size_t>(span_of[i]));
  });
}

/// Memory that a thread reuses.
struct RowScratch {
  std::vector<float> buffer;  // an entry of a bfloat16 cache, or several
  std::vector<float> values;
  std::vector<float> scores;
  std::vector<const float*> rows;
  std::vector<int32_t> order;
};

RowScratch& ScratchOfRow() {
  thread_local RowScratch scratch;
  return scratch;
}

/// Adds the token rows of [begin, end) to a running softmax per channel: values from `offset` on,
/// gates channels() behind them. max, sum and out are [width].
void PoolTokens(const CompressorShape& shape, const CompressArgs& args, const AttentionSpan& span,
                int32_t begin, int32_t end, int32_t offset, float* max, float* sum, float* out,
                float* buffer) {
  for (int32_t position = begin; position < end; ++position) {
    const float* values = EntryAt(args.tokens, span.block_table, position, buffer) + offset;
    const float* gates = values + shape.channels();
    for (int32_t i = 0; i < shape.width; ++i) {
      const float larger = std::max(max[i], gates[i]);
      const float kept = RoundedExp(max[i] - larger);
      const float weight = RoundedExp(gates[i] - larger);
      sum[i] = sum[i] * kept + weight;
      out[i] = out[i] * kept + weight * values[i];
      max[i] = larger;
    }
  }
}

/// Normalises an entry and rotates its last values, pairs (2i, 2i + 1).
void FinishEntry(const CompressorShape& shape, const float* norm, const float* cos,
                 const float* sin, float* entry) {
  const float mean = LaneDot(entry, entry, shape.width) / static_cast<float>(shape.width);
  const float inverse = 1.0F / std::sqrt(mean + shape.norm_eps);
  for (int32_t i = 0; i < shape.width; ++i) entry[i] = norm[i] * (entry[i] * inverse);
  float* rotated = entry + shape.width - shape.rope;
  for (int32_t i = 0; i < shape.rope / 2; ++i) {
    const float a = rotated[2 * i];
    const float b = rotated[2 * i + 1];
    rotated[2 * i] = a * cos[i] - b * sin[i];
    rotated[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

/// Writes the numbers of the `top_k` largest scores to `chosen`, rising; the lower one of equals.
void ChooseLargest(const std::vector<float>& scores, int32_t top_k, std::vector<int32_t>& order,
                   int32_t* chosen) {
  order.resize(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + top_k - 1, order.end(),
                   [&](int32_t a, int32_t b) {
                     const float of_a = scores[static_cast<size_t>(a)];
                     const float of_b = scores[static_cast<size_t>(b)];
                     return of_a != of_b ? of_a > of_b : a < b;
                   });
  std::copy_n(order.begin(), top_k, chosen);
  std::sort(chosen, chosen + top_k);
}

}  // namespace

void CpuOps::AddPositionBias(const Context& /*context*/, const StepInputs& inputs,
                             const float* bias, int32_t ratio, Tensor x) const {
  const MatrixView<float> rows = x.floats();
  const std::span<const int32_t> positions = Cast(inputs).positions();
  for (int64_t r = 0; r < rows.rows; ++r) {
    const float* of_slot = bias + positions[static_cast<size_t>(r)] % ratio * rows.cols;
    for (int64_t i = 0; i < rows.cols; ++i) rows.row(r)[i] += of_slot[i];
  }
}

void CpuOps::Compress(const Context& context, const CompressorShape& shape,
                      const StepInputs& inputs, const CompressArgs& args) const {
  OUTRIDER_CHECK(args.tokens.width == 2 * shape.channels() && args.entries.width == shape.width);
  const auto half = static_cast<size_t>(shape.rope / 2);
  OUTRIDER_CHECK(args.frequencies.size() == half);
  const std::span<const AttentionSpan> spans = Cast(inputs).per_head(args.tokens.group);
  const int64_t* slots = Cast(inputs).slots(args.entries.group);
  ForSpanRows(context, spans, [&](int32_t row, int32_t position, size_t s) {
    if (slots[row] < 0 || (position + 1) % shape.ratio != 0) return;
    const AttentionSpan& span = spans[s];
    RowScratch& scratch = ScratchOfRow();
    const auto width = static_cast<size_t>(shape.width);
    scratch.buffer.resize(static_cast<size_t>(args.tokens.width));
    scratch.values.assign(3 * width + 2 * half, 0.0F);
    float* out = scratch.values.data();
    float* sum = out + width;
    float* max = sum + width;
    float* cos = max + width;
    float* sin = cos + half;
    std::fill_n(max, width, std::numeric_limits<float>::lowest());
    const int32_t end = position + 1;
    const int32_t first = end - shape.ratio;
    float* buffer = scratch.buffer.data();
    if (shape.overlaps && first > 0) {
      PoolTokens(shape, args, span, first - shape.ratio, first, 0, max, sum, out, buffer);
    }
    PoolTokens(shape, args, span, first, end, shape.overlaps ? shape.width : 0, max, sum, out,
               buffer);
    for (size_t i = 0; i < width; ++i) out[i] /= sum[i];
    FillAngles(first, args.frequencies, args.magnitude, cos, sin);
    FinishEntry(shape, args.norm, cos, sin, out);
    // Slots count tokens; blocks are whole entries.
    StoreEntry(args.entries, slots[row] / shape.ratio, out);
  });
}

SelectedEntries CpuOps::SelectEntries(const Context& context, const StepInputs& inputs,
                                      const SelectEntriesArgs& args) const {
  const std::span<const AttentionSpan> spans = Cast(inputs).per_head(args.keys.group);
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
  ForSpanRows(context, spans, [&](int32_t row, int32_t position, size_t s) {
    const int32_t visible = (position + 1) / args.ratio;
    int32_t* chosen = entries + row * stride;
    counts[row] = std::min(visible, args.top_k);
    if (visible <= args.top_k) {
      std::iota(chosen, chosen + visible, 0);
      return;
    }
    RowScratch& scratch = ScratchOfRow();
    scratch.buffer.resize(static_cast<size_t>(dim));
    scratch.scores.resize(static_cast<size_t>(visible));
    for (int32_t j = 0; j < visible; ++j) {
      const float* key = EntryAt(args.keys, spans[s].block_table, j, scratch.buffer.data());
      float score = 0;
      for (int32_t h = 0; h < args.heads; ++h) {
        const float dot = LaneDot(q.row(row) + int64_t{h} * dim, key, dim);
        score += std::max(dot, 0.0F) * weights.row(row)[h];
      }
      scratch.scores[static_cast<size_t>(j)] = score;
    }
    ChooseLargest(scratch.scores, args.top_k, scratch.order, chosen);
  });
  return {entries, counts, stride};
}

void CpuOps::CompressedAttention(const Context& context, const StepInputs& inputs,
                                 const CompressedAttentionArgs& args) const {
  const std::span<const AttentionSpan> spans = Cast(inputs).per_head(args.window_rows.group);
  const std::span<const AttentionSpan> entry_spans = Cast(inputs).per_head(args.entries.group);
  const MatrixView<float> q = args.q.floats();
  const MatrixView<float> out = args.out.floats();
  const auto dim = int64_t{args.window_rows.width};
  OUTRIDER_CHECK(q.cols == args.heads * dim && out.cols == q.cols);
  OUTRIDER_CHECK(args.ratio == 0 || (args.entries.width == dim && !args.in_blocks));
  ForSpanRows(context, spans, [&](int32_t row, int32_t position, size_t s) {
    // A block reads the window of the row before it, and itself.
    const AttentionSpan& span = spans[s];
    const int32_t last = args.in_blocks ? span.context_length + span.query_length - 1 : position;
    const int32_t own = args.in_blocks ? span.context_length - 1 : position;
    const int32_t first = std::max(0, own - args.window + 1);
    const int32_t in_window = last - first + 1;
    int32_t in_entries = args.ratio > 0 ? (position + 1) / args.ratio : 0;
    const int32_t* chosen = nullptr;
    if (args.selected != nullptr) {
      in_entries = args.selected->counts[row];
      chosen = args.selected->entries + row * args.selected->stride;
    }
    RowScratch& scratch = ScratchOfRow();
    const size_t count = static_cast<size_t>(in_window) + static_cast<size_t>(in_entries);
    scratch.rows.resize(count);
    scratch.scores.resize(count);
    // A float32 cache is read where it is.
    scratch.buffer.resize(args.window_rows.dtype == DType::kF32 ? 0
                                                                : count * static_cast<size_t>(dim));
    float* buffer = scratch.buffer.data();
    const auto place = [&](size_t i) {
      return scratch.buffer.empty() ? nullptr : buffer + i * static_cast<size_t>(dim);
    };
    for (int32_t i = 0; i < in_window; ++i) {
      const auto at = static_cast<size_t>(i);
      scratch.rows[at] = EntryAt(args.window_rows, span.block_table, first + i, place(at));
    }
    for (int32_t i = 0; i < in_entries; ++i) {
      const size_t at = static_cast<size_t>(in_window) + static_cast<size_t>(i);
      scratch.rows[at] = EntryAt(args.entries, entry_spans[s].block_table,
                                 chosen != nullptr ? chosen[i] : i, place(at));
    }
    for (int32_t h = 0; h < args.heads; ++h) {
      const float* head = q.row(row) + h * dim;
      float max = args.sinks[h];
      for (size_t t = 0; t < count; ++t) {
        scratch.scores[t] = args.softmax_scale * LaneDot(head, scratch.rows[t], dim);
        max = std::max(max, scratch.scores[t]);
      }
      float sum = RoundedExp(args.sinks[h] - max);
      float* to = out.row(row) + h * dim;
      std::fill_n(to, dim, 0.0F);
      for (size_t t = 0; t < count; ++t) {
        const float weight = RoundedExp(scratch.scores[t] - max);
        sum += weight;
        for (int64_t i = 0; i < dim; ++i) to[i] += weight * scratch.rows[t][i];
      }
      for (int64_t i = 0; i < dim; ++i) to[i] /= sum;
    }
  });
}

}  // namespace outrider::cpu
