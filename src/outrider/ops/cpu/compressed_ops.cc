// CpuOps: DeepSeek-V4's attention, but for its indexer (sparse_ops.cc). Rows are independent.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "outrider/base/rounded_exp.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/cpu/lane_sums.h"
#include "outrider/ops/cpu/span_rows.h"
#include "outrider/ops/rotary_angles.h"

namespace outrider::cpu {

namespace {

/// Adds the token rows of [begin, end) to a running softmax per channel: values from `offset` on,
/// gates channels() behind them, with their bias. max, sum and out are [width].
void PoolTokens(const CompressArgs& args, const AttentionSpan& span, int32_t begin, int32_t end,
                int32_t offset, float* max, float* sum, float* out) {
  const CompressorShape& shape = args.shape;
  for (int32_t position = begin; position < end; ++position) {
    const int64_t slot = EntrySlot(args.tokens, span.block_table, position);
    const float* values = LoadFloats(args.tokens, slot, nullptr) + offset;
    const float* gates = values + shape.channels();
    const float* bias = args.bias + int64_t{position % shape.ratio} * shape.channels() + offset;
    for (int32_t i = 0; i < shape.width; ++i) {
      const float gate = gates[i] + bias[i];
      const float larger = std::max(max[i], gate);
      const float kept = RoundedExp(max[i] - larger);
      const float weight = RoundedExp(gate - larger);
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

}  // namespace

void CpuOps::FinishQueries(const Context& context, const QueryArgs& args) const {
  const auto rope = static_cast<int32_t>(2 * args.rotary.cos.cols);
  if (args.q.data != args.products.data) {
    Copy(context, args.products.Columns(0, args.q.cols), args.q);
  }
  NormHeads(context, args.q, args.heads, nullptr, args.norm_eps);
  const auto width = static_cast<int32_t>(args.q.cols / args.heads);
  Rotate(context, args.q, args.heads, width - rope, args.rotary);
  if (args.index_heads == 0) return;
  Copy(context, args.products.Columns(args.q.cols, args.index_q.cols), args.index_q);
  const auto index_width = static_cast<int32_t>(args.index_q.cols / args.index_heads);
  Rotate(context, args.index_q, args.index_heads, index_width - rope, args.rotary);
}

void CpuOps::WriteWindowRows(const Context& context, const StepInputs& inputs,
                             const WindowRowArgs& args) const {
  if (args.q.rows > 0) Norm(context, args.q, args.q_norm, args.norm_eps, args.q_out);
  Norm(context, args.kv, args.norm, args.norm_eps, args.kv);
  const auto rope = static_cast<int32_t>(2 * args.rotary.cos.cols);
  Rotate(context, args.kv, 1, args.cache.width - rope, args.rotary);
  WriteEntries(context, inputs, args.kv, args.cache);
}

void CpuOps::WriteTokenRows(const Context& context, const StepInputs& inputs, Tensor x,
                            std::span<const TokenRowArgs> compressors,
                            const Product* beside) const {
  const Scratch::Frame frame(context.arena);
  std::vector<Product> products;
  std::vector<Tensor> rows;
  for (const TokenRowArgs& args : compressors) {
    const int64_t channels = args.tokens.width / 2;
    rows.push_back(context.Rows(x.rows, 2 * channels));
    products.push_back(
        {.x = x, .w = args.values, .y = rows.back().Columns(0, channels), .float32 = true});
    products.push_back(
        {.x = x, .w = args.gates, .y = rows.back().Columns(channels, channels), .float32 = true});
  }
  if (beside != nullptr) products.push_back(*beside);
  Multiply(context, products);
  for (size_t i = 0; i < rows.size(); ++i) {
    WriteEntries(context, inputs, rows[i], compressors[i].tokens);
  }
}

void CpuOps::Compress(const Context& context, const StepInputs& inputs,
                      std::span<const CompressArgs> compressors) const {
  for (const CompressArgs& args : compressors) WritePooled(context, inputs, args);
}

void CpuOps::WritePooled(const Context& context, const StepInputs& inputs,
                         const CompressArgs& args) const {
  const CompressorShape& shape = args.shape;
  OUTRIDER_CHECK(args.tokens.width == 2 * shape.channels() && args.entries.width == shape.width);
  OUTRIDER_CHECK(args.tokens.dtype == DType::kF32);
  const auto half = static_cast<size_t>(shape.rope / 2);
  OUTRIDER_CHECK(args.frequencies.size() == half);
  const std::span<const AttentionSpan> spans = Cast(inputs).one_path(args.tokens.group);
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
      PoolTokens(args, span, first - shape.ratio, first, 0, max, sum, out);
    }
    PoolTokens(args, span, first, end, shape.overlaps ? shape.width : 0, max, sum, out);
    for (size_t i = 0; i < width; ++i) out[i] /= sum[i];
    FillAngles(first, args.frequencies, args.magnitude, cos, sin);
    FinishEntry(shape, args.norm, cos, sin, out);
    // Slots count tokens; blocks are whole entries.
    StoreEntry(args.entries, slots[row] / shape.ratio, out);
  });
}

void CpuOps::CompressedAttention(const Context& context, const StepInputs& inputs,
                                 const CompressedAttentionArgs& args) const {
  const std::span<const AttentionSpan> spans = Cast(inputs).one_path(args.window_rows.group);
  const std::span<const AttentionSpan> entry_spans = Cast(inputs).one_path(args.entries.group);
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
    if (HoldsCodes(args.window_rows)) buffer.resize(static_cast<size_t>(most) * entry_bytes);
    int64_t count = 0;
    const auto add = [&](const LayerCache& cache, const AttentionSpan& of, int64_t index) {
      std::byte* decoded = nullptr;  // entries that are not codes are read where they are
      if (HoldsCodes(cache)) decoded = buffer.data() + static_cast<size_t>(count) * entry_bytes;
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
  if (args.back == nullptr) return;
  const auto rope = static_cast<int32_t>(2 * args.back->cos.cols);
  Rotate(context, args.out, args.heads, dim - rope, *args.back);
}

}  // namespace outrider::cpu
