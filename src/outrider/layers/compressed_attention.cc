#include "outrider/layers/compressed_attention.h"

#include <array>

#include "outrider/ops/compressed.h"
#include "outrider/ops/sparse.h"

namespace outrider {

namespace {

/// What writes the rows of tokens of a compressor and the entries that they complete. The rows lie
/// in the arena.
CompressArgs CompressorOf(const Context& context, const CompressedSpec& spec,
                          const CompressorWeights& w, const CompressedStep& step,
                          LayerCache entries, LayerCache tokens, Tensor x) {
  const CompressorShape shape = {.ratio = static_cast<int32_t>(spec.ratio),
                                 .overlaps = spec.overlaps,
                                 .width = entries.width,
                                 .rope = static_cast<int32_t>(2 * step.frequencies.size()),
                                 .norm_eps = step.norm_eps};
  const Tensor rows = context.Rows(x.rows, tokens.width);
  const int32_t channels = shape.channels();
  context.ops.Multiply(
      context,
      std::array{
          Product{.x = x, .w = &w.values, .y = rows.Columns(0, channels), .float32 = true},
          Product{.x = x, .w = &w.gates, .y = rows.Columns(channels, channels), .float32 = true}});
  return {.shape = shape,
          .rows = rows,
          .bias = w.bias,
          .tokens = tokens,
          .norm = w.norm,
          .frequencies = step.frequencies,
          .magnitude = step.magnitude,
          .entries = entries};
}

/// Writes what the rows leave in the caches of a layer's compressors.
void WriteCompressed(const Context& context, const CompressedSpec& spec, const CompressedWeights& w,
                     const CompressedStep& step, Tensor x) {
  if (spec.ratio == 0) return;
  const Scratch::Frame frame(context.arena);
  std::array<CompressArgs, 2> compressors;
  size_t count = 0;
  compressors[count++] =
      CompressorOf(context, spec, w.compressor, step, step.caches[1], step.caches[2], x);
  if (spec.index_heads > 0) {
    compressors[count++] =
        CompressorOf(context, spec, w.indexer.compressor, step, step.caches[3], step.caches[4], x);
  }
  context.ops.compressed()->Compress(context, step.inputs, std::span(compressors).first(count));
}

/// The entries that every row attends to. queries [rows, q_lora].
SelectedEntries Select(const Context& context, const CompressedSpec& spec, const IndexerWeights& w,
                       const CompressedStep& step, LayerCache keys, Tensor queries, Tensor x) {
  const Ops& ops = context.ops;
  const auto heads = static_cast<int32_t>(spec.index_heads);
  const Tensor q = context.Activations(x.rows, spec.index_heads * spec.index_dim);
  const Tensor weights = context.Rows(x.rows, spec.index_heads);
  ops.Multiply(context, std::array{Product{.x = queries, .w = &w.queries, .y = q}});
  ops.Multiply(context,
               std::array{Product{.x = x, .w = &w.weights, .y = weights, .float32 = true}});
  const auto rope = static_cast<int32_t>(2 * step.frequencies.size());
  ops.Rotate(context, q, heads, keys.width - rope, step.rotary);
  return ops.sparse()->SelectEntries(context, step.inputs,
                                     {.heads = heads,
                                      .ratio = static_cast<int32_t>(spec.ratio),
                                      .top_k = static_cast<int32_t>(spec.index_top_k),
                                      .q = q,
                                      .weights = weights,
                                      .keys = keys});
}

WindowRowArgs WindowRows(const CompressedWeights& w, const CompressedStep& step, Tensor kv) {
  return {.kv = kv,
          .norm = w.kv_norm,
          .norm_eps = step.norm_eps,
          .rotary = step.rotary,
          .cache = step.caches[0]};
}

}  // namespace

void WriteWindowRows(const Context& context, const CompressedSpec& spec, const CompressedWeights& w,
                     const CompressedStep& step, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Rows(x.rows, spec.head_dim);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv, .y = kv}});
  context.ops.compressed()->WriteWindowRows(context, step.inputs, WindowRows(w, step, kv));
}

void CompressedForward(const Context& context, const CompressedSpec& spec,
                       const CompressedWeights& w, const CompressedStep& step, Tensor x,
                       Tensor out) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const auto heads = static_cast<int32_t>(spec.heads);

  // Side by side, as their weights may be: one product then.
  const Tensor both = context.Rows(x.rows, spec.q_lora + spec.head_dim);
  const Tensor latents = both.Columns(0, spec.q_lora);
  const Tensor kv = both.Columns(spec.q_lora, spec.head_dim);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = latents},
                                   Product{.x = x, .w = &w.kv, .y = kv}});
  const Tensor queries = context.Activations(x.rows, spec.q_lora);
  WindowRowArgs rows = WindowRows(w, step, kv);
  rows.q = latents;
  rows.q_norm = w.q_norm;
  rows.q_out = queries;
  ops.compressed()->WriteWindowRows(context, step.inputs, rows);
  const Tensor q = context.Activations(x.rows, spec.heads * spec.head_dim);
  ops.Multiply(context, std::array{Product{.x = queries, .w = &w.q_b, .y = q}});
  ops.compressed()->NormHeads(context, q, heads, nullptr, step.norm_eps, &step.rotary);

  const Tensor attended = context.Activations(x.rows, q.cols);
  CompressedAttentionArgs args = {.heads = heads,
                                  .window = static_cast<int32_t>(spec.window),
                                  .ratio = static_cast<int32_t>(spec.ratio),
                                  .softmax_scale = static_cast<float>(spec.softmax_scale),
                                  .q = q,
                                  .out = attended,
                                  .sinks = w.sinks,
                                  .back = &step.back,
                                  .window_rows = step.caches[0],
                                  .in_blocks = step.in_blocks,
                                  .entries = {},
                                  .selected = nullptr};
  WriteCompressed(context, spec, w, step, x);
  if (spec.ratio > 0) args.entries = step.caches[1];
  SelectedEntries selected;
  if (spec.index_heads > 0) {
    selected = Select(context, spec, w.indexer, step, step.caches[3], queries, x);
    args.selected = &selected;
  }
  ops.compressed()->CompressedAttention(context, step.inputs, args);
  const Tensor low = context.Activations(x.rows, spec.output_groups * spec.output_rank);
  ops.Multiply(context, std::array{Product{.x = attended,
                                           .w = &w.o_a,
                                           .y = low,
                                           .groups = static_cast<int32_t>(spec.output_groups)}});
  ops.Multiply(context, std::array{Product{.x = low, .w = &w.o_b, .y = out}});
}

}  // namespace outrider
