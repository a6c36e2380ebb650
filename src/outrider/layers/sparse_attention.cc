#include "outrider/layers/sparse_attention.h"

#include <algorithm>
#include <array>

#include "outrider/ops/mla.h"
#include "outrider/ops/sparse.h"

namespace outrider {

namespace {

constexpr float kKeyNormEps = 1e-6F;  // of the LayerNorm of keys

// Rows of a prompt whose absorbed queries are in memory together: those of 128 heads take 147 KB of
// bfloat16 each. No sum crosses rows, so it decides no bit.
constexpr int64_t kAttendedRows = 1024;

/// The first numbers of an indexer's heads and keys are rotated, in pairs of its own.
Rotary IndexRotary(const IndexerSpec& indexer, const Rotary& rotary) {
  return {rotary.cos, rotary.sin, indexer.interleaved};
}

void WriteIndexKeys(const Context& context, const IndexerSpec& indexer,
                    const SparseIndexerWeights& w, const StepInputs& inputs, const Rotary& rotary,
                    LayerCache cache, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor keys = context.Rows(x.rows, indexer.dim);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.keys, .y = keys}});
  context.ops.sparse()->WriteIndexKeys(context, inputs,
                                       {.keys = keys,
                                        .norm = w.norm,
                                        .bias = w.norm_bias,
                                        .norm_eps = kKeyNormEps,
                                        .rotary = IndexRotary(indexer, rotary),
                                        .cache = cache});
}

/// The tokens that every row attends to. q_latent [rows, q_lora].
SelectedEntries Select(const Context& context, const IndexerSpec& indexer,
                       const SparseIndexerWeights& w, const StepInputs& inputs,
                       const Rotary& rotary, LayerCache keys, Tensor q_latent, Tensor x) {
  const auto heads = static_cast<int32_t>(indexer.heads);
  const Tensor q = context.Activations(x.rows, indexer.heads * indexer.dim);
  const Tensor weights = context.Rows(x.rows, indexer.heads);
  context.ops.Multiply(context, std::array{Product{.x = q_latent, .w = &w.queries, .y = q}});
  context.ops.Multiply(context,
                       std::array{Product{.x = x, .w = &w.weights, .y = weights, .float32 = true}});
  context.ops.Rotate(context, q, heads, 0, IndexRotary(indexer, rotary));
  // The published scores have positive factors, which change no choice.
  return context.ops.sparse()->SelectEntries(context, inputs,
                                             {.heads = heads,
                                              .ratio = 1,
                                              .top_k = static_cast<int32_t>(indexer.top_k),
                                              .q = q,
                                              .weights = weights,
                                              .keys = keys});
}

}  // namespace

void SparseMlaForward(const Context& context, const MlaSpec& spec, const MlaWeights& w,
                      const StepInputs& inputs, const Rotary& rotary, const SparseCaches& caches,
                      Tensor x, Tensor residual) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const MlaShape s = ShapeOf(spec);
  const IndexerSpec& indexer = *spec.indexer;
  const int64_t width = spec.latent + spec.rope;

  // What both first products give stands side by side, so that a device may run them as one.
  const Tensor down = context.Activations(x.rows, spec.q_lora + width);
  const Tensor q_down = down.Columns(0, spec.q_lora);
  const Tensor kv = down.Columns(spec.q_lora, width);
  ops.Multiply(context, std::array{Product{.x = x, .w = &w.q_a, .y = q_down},
                                   Product{.x = x, .w = &w.kv_a, .y = kv}});
  const Tensor q_latent = context.Activations(x.rows, spec.q_lora);
  ops.mla()->WriteLatentEntries(context, s, inputs,
                                {.kv = kv,
                                 .norm = w.kv_a_norm,
                                 .rotary = rotary,
                                 .cache = caches.entries,
                                 .q_down = q_down,
                                 .q_norm = w.q_a_norm,
                                 .q_latent = q_latent});
  const Tensor q = context.Activations(x.rows, spec.heads * spec.query_width());
  ops.Multiply(context, std::array{Product{.x = q_latent, .w = &w.q_b, .y = q}});
  WriteIndexKeys(context, indexer, w.indexer, inputs, rotary, caches.index_keys, x);
  const SelectedEntries selected =
      Select(context, indexer, w.indexer, inputs, rotary, caches.index_keys, q_latent, x);

  const Tensor out = context.Activations(x.rows, spec.heads * spec.value);
  for (int64_t first = 0; first < x.rows; first += kAttendedRows) {
    const Scratch::Frame some(context.arena);
    const int64_t rows = std::min(kAttendedRows, x.rows - first);
    const Tensor absorbed = context.Activations(rows, spec.heads * width);
    const Tensor latent = context.Activations(rows, spec.heads * spec.latent);
    ops.mla()->Absorb(context, s, w.kv_up, AnglesOf(rotary, first, rows), q.Rows(first, rows),
                      absorbed);
    ops.sparse()->SelectedAttention(context, inputs,
                                    {.heads = s.heads,
                                     .softmax_scale = s.softmax_scale,
                                     .first_row = static_cast<int32_t>(first),
                                     .q = absorbed,
                                     .out = latent,
                                     .entries = caches.entries,
                                     .selected = &selected});
    ops.mla()->Unabsorb(context, s, w.kv_up, latent, out.Rows(first, rows));
  }
  ops.Multiply(context,
               std::array{Product{.x = out, .w = &w.o, .y = residual, .accumulate = true}});
}

void WriteSparseMlaEntries(const Context& context, const MlaSpec& spec, const MlaWeights& w,
                           const StepInputs& inputs, const Rotary& rotary,
                           const SparseCaches& caches, Tensor x) {
  const Scratch::Frame frame(context.arena);
  const Tensor kv = context.Activations(x.rows, spec.latent + spec.rope);
  context.ops.Multiply(context, std::array{Product{.x = x, .w = &w.kv_a, .y = kv}});
  context.ops.mla()->WriteLatentEntries(
      context, ShapeOf(spec), inputs,
      {.kv = kv, .norm = w.kv_a_norm, .rotary = rotary, .cache = caches.entries});
  WriteIndexKeys(context, *spec.indexer, w.indexer, inputs, rotary, caches.index_keys, x);
}

}  // namespace outrider
