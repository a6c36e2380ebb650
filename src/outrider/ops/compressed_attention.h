// Arguments of the operations of DeepSeek-V4's attention. All of them read cache entries by
// position, so a row's bits do not depend on when an entry was written.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/kv/layer_cache.h"
#include "outrider/ops/row_arguments.h"
#include "outrider/ops/sparse.h"
#include "outrider/ops/tensor.h"
#include "outrider/ops/weights.h"

namespace outrider {

/// Pools entries of `width` numbers from consecutive tokens. Entry j stands for the tokens
/// [j * ratio, (j + 1) * ratio). A token's row holds values, then gates, in `channels()` channels
/// each. With overlap the first half of the channels is for the next entry, the second for the
/// token's own: entry j pools the first half of the `ratio` tokens before it, if there are any, and
/// the second half of its own.
struct CompressorShape {
  int32_t ratio = 0;
  bool overlaps = false;
  int32_t width = 0;
  int32_t rope = 0;  // the last values of an entry, which are rotated
  float norm_eps = 0;

  int32_t channels() const { return overlaps ? 2 * width : width; }
};

/// What writes the rows of a window: weight * kv / sqrt(mean(kv^2) + eps), the last values rotated.
struct WindowRowArgs {
  Tensor kv;                    // [rows, D]; it may change
  const float* norm = nullptr;  // weight [D]
  float norm_eps = 0;
  Rotary rotary;
  LayerCache cache;  // [D]
  /// Queries' latents, which are normalised too; no rows: none. q_out may be q.
  Tensor q = {};
  const float* q_norm = nullptr;  // [cols of q]
  Tensor q_out = {};
};

/// Queries as their products give them, and where they go. Every head is divided by
/// sqrt(mean(q^2) + eps), then its last values are rotated; those of an indexer's heads are rotated
/// alone.
struct QueryArgs {
  Tensor products;  // [rows, columns of q and index_q]; they may change
  Tensor q;         // [rows, heads * D]; it may be `products`
  int32_t heads = 0;
  float norm_eps = 0;
  Rotary rotary;
  Tensor index_q = {};  // [rows, index_heads * I]; no rows: there is no indexer
  int32_t index_heads = 0;
};

/// What writes the rows of a step's tokens, of which a compressor pools entries.
struct TokenRowArgs {
  const Weight* values = nullptr;  // [channels(), K]
  const Weight* gates = nullptr;   // [channels(), K]
  LayerCache tokens;               // float32 rows of channels() values and as many gates
};

/// What writes the entries that a step's rows complete. To the gates of a token the bias of its
/// position in a group of `ratio` is added. An entry is rotated by the angles of its first
/// position, pairs (2i, 2i + 1).
struct CompressArgs {
  CompressorShape shape;
  const float* bias = nullptr;         // [ratio, channels()]
  LayerCache tokens;                   // what WriteTokenRows has written
  const float* norm = nullptr;         // [width]
  std::span<const float> frequencies;  // [rope / 2]
  float magnitude = 1;                 // of the angles' cos and sin
  LayerCache entries;
};

/// Attention of heads that read the same rows, which are key and value at once: row r at position p
/// reads the window's rows of the positions p - window + 1 .. p (window 0: none), then compressed
/// entries. For head h, over all of these t and a sink that has no value
///   s_t = scale * q[r, h] · t,  out[r, h] = sum_t exp(s_t) t / (sum_t exp(s_t) + exp(sink[h])).
/// In blocks, the rows of a request see each other and the window before the first of them. At the
/// end the last values of every head of out are rotated.
struct CompressedAttentionArgs {
  int32_t heads = 0;
  int32_t window = 0;
  int32_t ratio = 0;  // 0: no entries
  float softmax_scale = 0;
  Tensor q;                      // [rows, heads * D], rotated
  Tensor out;                    // [rows, heads * D]
  const float* sinks = nullptr;  // [heads]; null: none
  const Rotary* back = nullptr;  // of the outputs' rotation; null: none
  LayerCache window_rows;        // [D]
  bool in_blocks = false;        // without entries
  LayerCache entries;            // [D]
  /// Null: all entries j < (position + 1) / ratio.
  const SelectedEntries* selected = nullptr;
};

}  // namespace outrider
