#include "outrider/layers/compressed_attention.h"

#include <array>

#include "outrider/ops/compressed.h"
#include "outrider/ops/sparse.h"

namespace outrider {

namespace {

/// Writes what the rows x leave in the caches of a layer's compressors. Returns the weights of the
/// indexer's heads [rows, index heads], in memory of the arena; no rows: there is no indexer.
Tensor WriteCompressed(const Context& context, const CompressedSpec& spec,
                       const CompressedWeights& w, const CompressedStep& step, Tensor x) {
  const bool indexes = spec.index_heads > 0;
  const size_t count = indexes ? 2 : 1;
  const std::array weights = {&w.compressor, &w.indexer.compressor};
  std::array<TokenRowArgs, 2> rows;
  std::array<CompressArgs, 2> compressors;
  for (size_t i = 0; i < count; ++i) {
    const LayerCache entries = step.caches[1 + 2 * i];
    const LayerCache tokens = step.caches[2 + 2 * i];
    rows[i] = {.values = &weights[i]->values, .gates = &weights[i]->gates, .tokens = tokens};
    compressors[i] = {.shape = {.ratio = static_cast<int32_t>(spec.ratio),
                                .overlaps = spec.overlaps,
                                .width = entries.width,
                                .rope = static_cast<int32_t>(2 * step.frequencies.size()),
                                .norm_eps = step.norm_eps},
                      .bias = weights[i]->bias,
                      .tokens = tokens,
                      .norm = weights[i]->norm,
                      .frequencies = step.frequencies,
                      .magnitude = step.magnitude,
                      .entries = entries};
  }
  Tensor of_heads;
  if (indexes) of_heads = context.Rows(x.rows, spec.index_heads);
  const Product beside = {.x = x, .w = &w.indexer.weights, .y = of_heads, .float32 = true};
  const CompressedOps& ops = *context.ops.compressed();
  ops.WriteTokenRows(context, step.inputs, x, std::span(rows).first(count),
                     indexes ? &beside : nullptr);
  ops.Compress(context, step.inputs, std::span(compressors).first(count));
  return of_heads;
}

/// Queries of the heads and of an indexer's. Memory of the arena.
struct Queries {
  Tensor q;      // [rows, heads * D]
  Tensor index;  // [rows, index heads * I]; no rows: there is no indexer
};

/// latents [rows, q_lora], normalised.
Queries QueriesOf(const Context& context, const CompressedSpec& spec, const CompressedWeights& w,
                  const CompressedStep& step, Tensor latents) {
  const int64_t width = spec.heads * spec.head_dim;
  const int64_t index_width = spec.index_heads * spec.index_dim;
  Queries queries = {.q = context.Activations(latents.rows, width), .index = {}};
  if (index_width > 0) queries.index = context.Activations(latents.rows, index_width);
  const Scratch::Frame frame(context.arena);
  // Side by side, as their weights may be: one product then.
  const Tensor both =
      index_width > 0 ? context.Activations(latents.rows, width + index_width) : queries.q;
  const std::array products = {
      Product{.x = latents, .w = &w.q_b, .y = both.Columns(0, width)},
      Product{.x = latents, .w = &w.indexer.queries, .y = both.Columns(width, index_width)}};
  context.ops.Multiply(context, std::span(products).first(index_width > 0 ? 2 : 1));
  context.ops.compressed()->FinishQueries(context,
                                          {.products = both,
                                           .q = queries.q,
                                           .heads = static_cast<int32_t>(spec.heads),
                                           .norm_eps = step.norm_eps,
                                           .rotary = step.rotary,
                                           .index_q = queries.index,
                                           .index_heads = static_cast<int32_t>(spec.index_heads)});
  return queries;
}

/// The entries that every row attends to. q [rows, index heads * I], weights [rows, index heads].
SelectedEntries Select(const Context& context, const CompressedSpec& spec,
                       const CompressedStep& step, LayerCache keys, Tensor q, Tensor weights) {
  return context.ops.sparse()->SelectEntries(context, step.inputs,
                                             {.heads = static_cast<int32_t>(spec.index_heads),
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

  // Side by side, as their weights may be: one product then.
  const Tensor both = context.Rows(x.rows, spec.q_lora + spec.head_dim);
  const Tensor latents = both.Columns(0, spec.q_lora);
  const Tensor kv = both.Columns(spec.q_lora, spec.head_dim);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = latents},
                                   Product{.x = x, .w = &w.kv, .y = kv}});
  const Tensor normed = context.Activations(x.rows, spec.q_lora);
  WindowRowArgs rows = WindowRows(w, step, kv);
  rows.q = latents;
  rows.q_norm = w.q_norm;
  rows.q_out = normed;
  ops.compressed()->WriteWindowRows(context, step.inputs, rows);
  const Queries queries = QueriesOf(context, spec, w, step, normed);

  const Tensor attended = context.Activations(x.rows, queries.q.cols);
  CompressedAttentionArgs args = {.heads = static_cast<int32_t>(spec.heads),
                                  .window = static_cast<int32_t>(spec.window),
                                  .ratio = static_cast<int32_t>(spec.ratio),
                                  .softmax_scale = static_cast<float>(spec.softmax_scale),
                                  .q = queries.q,
                                  .out = attended,
                                  .sinks = w.sinks,
                                  .back = &step.back,
                                  .window_rows = step.caches[0],
                                  .in_blocks = step.in_blocks,
                                  .entries = {},
                                  .selected = nullptr};
  Tensor index_weights;
  if (spec.ratio > 0) {
    index_weights = WriteCompressed(context, spec, w, step, x);
    args.entries = step.caches[1];
  }
  SelectedEntries selected;
  if (spec.index_heads > 0) {
    selected = Select(context, spec, step, step.caches[3], queries.index, index_weights);
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
