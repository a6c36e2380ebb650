#include "outrider/layers/compressed_attention.h"

#include <array>

#include "outrider/ops/compressed.h"
#include "outrider/ops/sparse.h"

namespace outrider {

namespace {

/// Writes the rows of tokens and the entries that they complete.
void WriteCompressed(const Context& context, const CompressedSpec& spec, const CompressorWeights& w,
                     const CompressedStep& step, LayerCache entries, LayerCache tokens, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const CompressorShape shape = {.ratio = static_cast<int32_t>(spec.ratio),
                                 .overlaps = spec.overlaps,
                                 .width = entries.width,
                                 .rope = static_cast<int32_t>(2 * step.frequencies.size()),
                                 .norm_eps = step.norm_eps};
  const Tensor rows = context.Rows(x.rows, tokens.width);
  const Tensor gates = rows.Columns(shape.channels(), shape.channels());
  ops.Multiply(
      context,
      std::array{
          Product{.x = x, .w = &w.values, .y = rows.Columns(0, shape.channels()), .float32 = true},
          Product{.x = x, .w = &w.gates, .y = gates, .float32 = true}});
  ops.compressed()->AddPositionBias(context, step.inputs, w.bias, shape.ratio, gates);
  ops.compressed()->WriteEntries(context, step.inputs, rows, tokens);
  ops.compressed()->Compress(context, shape, step.inputs,
                             {.tokens = tokens,
                              .norm = w.norm,
                              .frequencies = step.frequencies,
                              .magnitude = step.magnitude,
                              .entries = entries});
}

/// The entries that every row attends to. queries [rows, q_lora].
SelectedEntries Select(const Context& context, const CompressedSpec& spec, const IndexerWeights& w,
                       const CompressedStep& step, LayerCache keys, Tensor queries, Tensor x) {
  const Ops& ops = context.ops;
  const auto heads = static_cast<int32_t>(spec.index_heads);
  const Tensor q = context.Rows(x.rows, spec.index_heads * spec.index_dim);
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

/// Where the rotated values of a head or row of the window begin.
int32_t RotaryOffset(const CompressedStep& step) {
  return step.caches[0].width - static_cast<int32_t>(2 * step.frequencies.size());
}

/// kv [rows, D], of wkv, may change.
void StoreWindowRows(const Context& context, const CompressedWeights& w, const CompressedStep& step,
                     Tensor kv) {
  const Ops& ops = context.ops;
  ops.Norm(context, kv, w.kv_norm, step.norm_eps, kv);
  ops.Rotate(context, kv, 1, RotaryOffset(step), step.rotary);
  ops.compressed()->WriteEntries(context, step.inputs, kv, step.caches[0]);
}

}  // namespace

void WriteWindowRows(const Context& context, const CompressedSpec& spec, const CompressedWeights& w,
                     const CompressedStep& step, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Rows(x.rows, spec.head_dim);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv, .y = kv}});
  StoreWindowRows(context, w, step, kv);
}

void CompressedForward(const Context& context, const CompressedSpec& spec,
                       const CompressedWeights& w, const CompressedStep& step, Tensor x,
                       Tensor out) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const auto heads = static_cast<int32_t>(spec.heads);
  const int32_t offset = RotaryOffset(step);

  const Tensor queries = context.Rows(x.rows, spec.q_lora);
  const Tensor kv = context.Rows(x.rows, spec.head_dim);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = queries},
                                   Product{.x = x, .w = &w.kv, .y = kv}});
  ops.Norm(context, queries, w.q_norm, step.norm_eps, queries);
  StoreWindowRows(context, w, step, kv);
  const Tensor q = context.Rows(x.rows, spec.heads * spec.head_dim);
  ops.Multiply(context, std::array{Product{.x = queries, .w = &w.q_b, .y = q}});
  ops.compressed()->NormHeads(context, q, heads, step.ones, step.norm_eps);
  ops.Rotate(context, q, heads, offset, step.rotary);

  const Tensor attended = context.Rows(x.rows, q.cols);
  CompressedAttentionArgs args = {.heads = heads,
                                  .window = static_cast<int32_t>(spec.window),
                                  .ratio = static_cast<int32_t>(spec.ratio),
                                  .softmax_scale = static_cast<float>(spec.softmax_scale),
                                  .q = q,
                                  .out = attended,
                                  .sinks = w.sinks,
                                  .window_rows = step.caches[0],
                                  .in_blocks = step.in_blocks,
                                  .entries = {},
                                  .selected = nullptr};
  SelectedEntries selected;
  if (spec.ratio > 0) {
    WriteCompressed(context, spec, w.compressor, step, step.caches[1], step.caches[2], x);
    args.entries = step.caches[1];
  }
  if (spec.index_heads > 0) {
    WriteCompressed(context, spec, w.indexer.compressor, step, step.caches[3], step.caches[4], x);
    selected = Select(context, spec, w.indexer, step, step.caches[3], queries, x);
    args.selected = &selected;
  }
  ops.compressed()->CompressedAttention(context, step.inputs, args);
  ops.Rotate(context, attended, heads, offset, step.back);
  const Tensor low = context.Rows(x.rows, spec.output_groups * spec.output_rank);
  ops.Multiply(context, std::array{Product{.x = attended,
                                           .w = &w.o_a,
                                           .y = low,
                                           .groups = static_cast<int32_t>(spec.output_groups)}});
  ops.Multiply(context, std::array{Product{.x = low, .w = &w.o_b, .y = out}});
}

}  // namespace outrider
