#include "outrider/layers/compressed_attention.h"

#include <array>

#include "outrider/ops/compressed.h"
#include "outrider/ops/sparse.h"

namespace outrider {

namespace {

/// What a layer's compressors and its indexer make of x.
struct InputRows {
  Tensor compressor;  // [rows, 2 * channels]: values, then gates
  Tensor indexer;     // values and gates of the indexer's compressor
  Tensor weights;     // [rows, index heads]
};

/// Side by side, as their weights may be: one product then. Memory of the arena.
InputRows RowsOf(const Context& context, const CompressedSpec& spec, const CompressedWeights& w,
                 const CompressedStep& step, Tensor x) {
  const bool indexes = spec.index_heads > 0;
  const int64_t own = step.caches[2].width;
  const int64_t indexer = indexes ? step.caches[4].width : 0;
  const Tensor all = context.Rows(x.rows, own + indexer + spec.index_heads);
  const InputRows rows = {.compressor = all.Columns(0, own),
                          .indexer = all.Columns(own, indexer),
                          .weights = all.Columns(own + indexer, spec.index_heads)};
  const auto product = [&](const Weight& weight, Tensor y) {
    return Product{.x = x, .w = &weight, .y = y, .float32 = true};
  };
  const auto half = [](Tensor both, int64_t i) {
    return both.Columns(i * both.cols / 2, both.cols / 2);
  };
  std::array<Product, 5> products;
  size_t count = 0;
  products[count++] = product(w.compressor.values, half(rows.compressor, 0));
  products[count++] = product(w.compressor.gates, half(rows.compressor, 1));
  if (indexes) {
    products[count++] = product(w.indexer.compressor.values, half(rows.indexer, 0));
    products[count++] = product(w.indexer.compressor.gates, half(rows.indexer, 1));
    products[count++] = product(w.indexer.weights, rows.weights);
  }
  context.ops.Multiply(context, std::span(products).first(count));
  return rows;
}

/// What writes the rows of tokens of a compressor and the entries that they complete.
CompressArgs CompressorOf(const CompressedSpec& spec, const CompressorWeights& w,
                          const CompressedStep& step, LayerCache entries, LayerCache tokens,
                          Tensor rows) {
  return {.shape = {.ratio = static_cast<int32_t>(spec.ratio),
                    .overlaps = spec.overlaps,
                    .width = entries.width,
                    .rope = static_cast<int32_t>(2 * step.frequencies.size()),
                    .norm_eps = step.norm_eps},
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
                     const CompressedStep& step, const InputRows& rows) {
  std::array<CompressArgs, 2> compressors;
  size_t count = 0;
  compressors[count++] =
      CompressorOf(spec, w.compressor, step, step.caches[1], step.caches[2], rows.compressor);
  if (spec.index_heads > 0) {
    compressors[count++] = CompressorOf(spec, w.indexer.compressor, step, step.caches[3],
                                        step.caches[4], rows.indexer);
  }
  context.ops.compressed()->Compress(context, step.inputs, std::span(compressors).first(count));
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
  InputRows input;
  if (spec.ratio > 0) {
    input = RowsOf(context, spec, w, step, x);
    WriteCompressed(context, spec, w, step, input);
    args.entries = step.caches[1];
  }
  SelectedEntries selected;
  if (spec.index_heads > 0) {
    selected = Select(context, spec, step, step.caches[3], queries.index, input.weights);
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
