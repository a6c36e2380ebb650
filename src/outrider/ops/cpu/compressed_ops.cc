// CpuOps: DeepSeek-V4's attention. Rows are independent.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "outrider/base/rounded_exp.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/cpu/lane_sums.h"
#include "outrider/ops/rotary_angles.h"

namespace outrider::cpu {

namespace {

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
  std::vector<float> values;
  std::vector<float> scores;
  std::vector<int32_t> order;
  std::vector<std::byte> entries;  // of a rounded cache, as they are multiplied
};

RowScratch& ScratchOfRow() {
  thread_local RowScratch scratch;
  return scratch;
}

/// Adds the token rows of [begin, end) to a running softmax per channel: values from `offset` on,
/// gates channels() behind them. max, sum and out are [width].
void PoolTokens(const CompressorShape& shape, const CompressArgs& args, const AttentionSpan& span,
                int32_t begin, int32_t end, int32_t offset, float* max, float* sum, float* out) {
  for (int32_t position = begin; position < end; ++position) {
    const int64_t slot = EntrySlot(args.tokens, span.block_table, position);
    const float* values = LoadFloats(args.tokens, slot, nullptr) + offset;
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
  OUTRIDER_CHECK(args.tokens.dtype == DType::kF32);
  const auto half = static_cast<size_t>(shape.rope / 2);
  OUTRIDER_CHECK(args.frequencies.size() == half);
  const std::span<const AttentionSpan> spans = Cast(inputs).per_head(args.tokens.group);
  const int64_t* slots = Cast(inputs).slots(args.entries.group);
  ForSpanRows(context, spans, [&](int32_t row, int32_t position, size_t s) {
    if (slots[row] < 0 || (position + 1) % shape.ratio != 0) return;
    const AttentionSpan& span = spans[s];
    RowScratch& scratch = ScratchOfRow();
    const auto width = static_cast<size_t>(shape.width);
    scratch.values.assign(3 * width + 2 * half, 0.0F);
    float* out = scratch.values.data();
    float* sum = out + width;
    float* max = sum + width;
    float* cos = max + width;
    float* sin = cos + half;
    std::fill_n(max, width, std::numeric_limits<float>::lowest());
    const int32_t end = position + 1;
    const int32_t first = end - shape.ratio;
    if (shape.overlaps && first > 0) {
      PoolTokens(shape, args, span, first - shape.ratio, first, 0, max, sum, out);
    }
    PoolTokens(shape, args, span, first, end, shape.overlaps ? shape.width : 0, max, sum, out);
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
    if (args.keys.dtype == DType::kF4E2M1) {
      for (int32_t h = 0; h < args.heads; ++h) {
        RoundIndexQuery(scratch.values.data() + int64_t{h} * dim, dim);
      }
    }
    scratch.scores.resize(static_cast<size_t>(visible));
    for (int32_t j = 0; j < visible; ++j) {
      float score = 0;
      for (int32_t h = 0; h < args.heads; ++h) {
        const float dot = LaneDot(scratch.values.data() + int64_t{h} * dim, keys[s].row(j), dim);
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
  const int32_t dim = args.window_rows.width;
  OUTRIDER_CHECK(args.ratio == 0 || (args.entries.width == dim && !args.in_blocks));
  OUTRIDER_CHECK(args.ratio == 0 || LoadedType(args.entries) == LoadedType(args.window_rows));
  const Scratch::Frame frame(context.arena);
  auto* span_of = context.arena.Take<int32_t>(args.q.rows);
  int64_t most = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    const AttentionSpan& span = spans[s];
    std::fill_n(span_of + span.first_row, span.query_length, static_cast<int32_t>(s));
    const int64_t length = span.context_length + span.query_length;
    const int64_t in_entries = args.ratio > 0 ? length / args.ratio : 0;
    most = std::max(
        most,
        std::min<int64_t>(length, args.window + span.query_length) +
            (args.selected != nullptr ? std::min(in_entries, args.selected->stride) : in_entries));
  }
  const DType dtype = LoadedType(args.window_rows);
  const auto entry_bytes = static_cast<size_t>(dim) * DTypeSize(dtype);
  const auto list = [&](int64_t row, const std::byte** entries) {
    const auto s = static_cast<size_t>(span_of[row]);
    const AttentionSpan& span = spans[s];
    const auto position = static_cast<int32_t>(span.context_length + row - span.first_row);
    std::vector<std::byte>& buffer = ScratchOfRow().entries;
    if (args.window_rows.code_bytes > 0) buffer.resize(static_cast<size_t>(most) * entry_bytes);
    int64_t count = 0;
    const auto add = [&](const LayerCache& cache, const AttentionSpan& of, int64_t index) {
      std::byte* decoded = nullptr;  // entries that are not codes are read where they are
      if (cache.code_bytes > 0) decoded = buffer.data() + static_cast<size_t>(count) * entry_bytes;
      entries[count] = LoadEntry(cache, EntrySlot(cache, of.block_table, index), decoded);
      ++count;
    };
    // A block reads the window of the row before it, and itself.
    const int32_t own = args.in_blocks ? span.context_length - 1 : position;
    const int32_t last = args.in_blocks ? span.context_length + span.query_length - 1 : position;
    for (int32_t p = std::max(0, own - args.window + 1); p <= last; ++p) {
      add(args.window_rows, span, p);
    }
    if (args.selected != nullptr) {
      const int32_t* chosen = args.selected->entries + row * args.selected->stride;
      for (int32_t i = 0; i < args.selected->counts[row]; ++i) {
        add(args.entries, entry_spans[s], chosen[i]);
      }
    } else if (args.ratio > 0) {
      for (int32_t i = 0; i < (position + 1) / args.ratio; ++i) {
        add(args.entries, entry_spans[s], i);
      }
    }
    return count;
  };
  kernels_.listed_attention(*context.pool, {.q = args.q.floats(),
                                            .heads = args.heads,
                                            .width = dim,
                                            .value_width = dim,
                                            .scale = args.softmax_scale,
                                            .sinks = args.sinks,
                                            .dtype = dtype,
                                            .most_entries = most,
                                            .out = args.out.floats(),
                                            .list = list});
}

}  // namespace outrider::cpu
