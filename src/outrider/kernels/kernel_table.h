// All arithmetic on rows that the engine does, as one table of functions per CPU instruction set.
//
// Activations are float32 everywhere. Every entry is row-invariant: the bits that it writes for a
// row depend on that row's inputs alone, never on how many rows or requests the call holds, on
// their order, or on the number of threads. `reference/` gives the meaning of each entry in plain
// C++; other backends are held to it by tests/kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "outrider/base/cpu_features.h"
#include "outrider/base/dtype.h"
#include "outrider/base/matrix_view.h"
#include "outrider/base/thread_pool.h"
#include "outrider/kernels/packed_matrix.h"

namespace outrider {

/// One matrix product y = x W^T, or y += x W^T.
///
/// Each output is one chain of fused multiply-adds in order of k, from zero: the same bits on every
/// backend that has float32 FMA. With kF8E4M3 weights x[k] is multiplied by the scale of the
/// weight's block first (one float32 product) and the chain is over codes; with kI8 the chain is
/// over codes and the finished sum is multiplied by the output's scale. (A backend may carry a
/// power of two along a chain of e4m3 codes; what then differs is below 2^-100.) With `accumulate`
/// the finished sum is then added to y.
///
/// The amx table has another order where x is rounded to bfloat16 and the weights are not kF32,
/// that of TDPBF16PS: of every 32 columns the even ones are a chain from zero and the odd ones
/// another, (even + odd) is added to the sum, and subnormal numbers are zero. With kF8E4M3 the
/// columns of a scale have such a sum of codes, which is added to the whole times the scale by one
/// FMA; a format whose scale_cols is no multiple of 32, or more than 256, keeps the chain.
///
/// The avx512_bf16 table has that of VDPBF16PS for the same operands: one chain from zero, of each
/// pair of columns the odd one first, with subnormal operands and results taken for zero. What is
/// said of kF8E4M3 holds here too.
struct MatMulJob {
  MatrixView<const float> x;        // [rows, K]; with x_rows: [any, K]
  const int32_t* x_rows = nullptr;  // optional [rows]: row i of the product reads x.row(x_rows[i])
  const PackedMatrix* w = nullptr;  // [N, K]
  MatrixView<float> y;              // [rows, N]; y.rows is the number of rows
  bool accumulate = false;
};

/// The product x W^T of a MatMulJob, of which only the largest output of each row is wanted.
struct ArgMaxJob {
  MatrixView<const float> x;        // [rows, K]; with x_rows: [any, K]
  const int32_t* x_rows = nullptr;  // optional [rows]
  const PackedMatrix* w = nullptr;  // [N, K]
  std::span<int32_t> columns;       // [rows], the result
};

/// The cache of one layer: [blocks, block_size, width], float32 or bfloat16. A token's entry is
/// one of
///   latent:   its normalised latent [L], its rotated key [R]; width = L + R;
///   per head: the key of every head [heads * P], the rotated key that they share [R], the value of
///             every head [heads * V]; width = heads * (P + V) + R.
struct LayerCache {
  std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  int32_t block_size = 0;
  int32_t width = 0;

  /// Element offset of the entry in `slot` (= block * block_size + offset in the block).
  int64_t SlotOffset(int64_t slot) const { return slot * width; }
};

/// The rows of one request in a step. Row j has position context_length + j and sees the keys at
/// positions 0 .. context_length + j.
struct AttentionSpan {
  int32_t first_row = 0;
  int32_t query_length = 0;
  int32_t context_length = 0;
  const int32_t* block_table = nullptr;  // covers context_length + query_length positions
};

/// Key positions per partial softmax of attention over the paged cache: partials cover
/// [256 i, 256 (i + 1)) of absolute positions and merge in a fixed order, whatever the step's
/// lengths. `outrider bench kernels` measures what other splits would gain.
inline constexpr int32_t kPagedSplit = 256;

/// Absorbed (MQA) attention over the paged latent cache: for row r, head h
///   s_t = scale * dot(q[r, h], cache[t]),  out[r, h] = sum_t softmax(s)_t * cache[t][0:L].
/// Over a bfloat16 cache factors are rounded to bfloat16 (nearest even) before they are multiplied:
/// the elements of q, and the weights of values exp(s_t - m), m the largest score of the split of
/// t. What the weighted sum is divided by is the sum of the weights as rounded.
struct AbsorbedAttentionArgs {
  MatrixView<const float>
      q;  // [rows, heads * (L + R)]: per head the absorbed query, then rotated rope
  int32_t heads = 0;
  int32_t latent = 0;  // L
  int32_t rope = 0;    // R
  float scale = 0;
  LayerCache cache;
  std::span<const AttentionSpan> requests;
  MatrixView<float> out;        // [rows, heads * L]
  int32_t split = kPagedSplit;  // any other rounds otherwise: for measurements only
};

/// Attention over the paged cache of per-head entries, with q and weights rounded alike: for row r,
/// head h
///   k_t = [entry_t.key[h] ; entry_t.rotated], s_t = scale * dot(q[r, h], k_t),
///   out[r, h] = sum_t softmax(s)_t * entry_t.value[h].
struct PerHeadAttentionArgs {
  MatrixView<const float> q;  // [rows, heads * (P + R)]: per head nope then rotated rope
  int32_t heads = 0;
  int32_t nope = 0;   // P
  int32_t rope = 0;   // R
  int32_t value = 0;  // V
  float scale = 0;
  LayerCache cache;
  std::span<const AttentionSpan> requests;
  MatrixView<float> out;  // [rows, heads * V]
};

/// Key positions per block of the expanded form; blocks start at absolute multiples of this.
inline constexpr int32_t kExpandedBlock = 256;

/// One block of expanded keys and values of one request.
struct ExpandedBlock {
  AttentionSpan request;  // its block_table is not read
  int32_t first_key = 0;  // absolute position, a multiple of kExpandedBlock
  int32_t num_keys = 0;   // 1 .. kExpandedBlock
  int64_t kv_row = 0;     // first row of this block in kv and k_rope
};

/// One round of expanded (MHA) attention with a running softmax per (row, head):
///   k = [kv[t, h, 0:P] ; k_rope[t]], v = kv[t, h, P:P+V],  s_t = scale * dot(q[r, h], k_t).
/// Blocks of one request must come in rising order, in one call or over several; state (running
/// maximum, running sum, unnormalised out) is carried in memory. A block with first_key 0
/// initialises the state of its rows. Rows whose position is below first_key skip the block.
struct ExpandedAttentionArgs {
  MatrixView<const float> q;  // [rows, heads * (P + R)]: per head nope then rotated rope
  int32_t heads = 0;
  int32_t nope = 0;   // P
  int32_t rope = 0;   // R
  int32_t value = 0;  // V
  float scale = 0;
  MatrixView<const float> kv;      // [any, heads * (P + V)]: per head key nope, then value
  MatrixView<const float> k_rope;  // [any, R]
  std::span<const ExpandedBlock> blocks;
  MatrixView<float> out;          // [rows, heads * V]
  MatrixView<float> running_max;  // [rows, heads]
  MatrixView<float> running_sum;  // [rows, heads]
};

/// Rotary embedding and its tables for the rows of a step.
struct RotaryRows {
  MatrixView<const float> cos;  // [rows, R / 2], magnitude included
  MatrixView<const float> sin;  // [rows, R / 2]
  bool interleaved = true;      // pairs (2i, 2i + 1); false: pairs (i, i + R / 2)
};

struct KernelTable {
  std::string_view name;

  /// Up to so many FP8 weights that are used together are better packed as bfloat16: they come from
  /// a cache, and there to widen codes takes these kernels longer than to read twice the bytes.
  int64_t few_weights = 0;

  /// Runs all jobs as one task list. With operand_dtype kBF16 the elements of x are rounded to
  /// bfloat16 (nearest even) before they are multiplied; sums are float32 in both cases.
  void (*matmul)(ThreadPool& pool, std::span<const MatMulJob> jobs, DType operand_dtype);

  /// columns[r] = the column of the largest output of row r, whose bits are matmul's: the lowest
  /// one among equals, -1 where the largest is infinite or there is none, as NaN is not larger than
  /// anything. Outputs are not stored.
  void (*matmul_arg_max)(ThreadPool& pool, const ArgMaxJob& job, DType operand_dtype);

  /// y[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)) (Zhang and Sennrich 2019). x and y
  /// [rows, n], y may be x; weight [n].
  void (*rms_norm)(ThreadPool& pool, MatrixView<const float> x, const float* weight, float eps,
                   MatrixView<float> y);

  /// y[r, i] = silu(x[r, i]) * x[r, n + i]; x [rows, 2 n] (gate, then up), y [rows, n].
  void (*silu_mul)(ThreadPool& pool, MatrixView<const float> x, MatrixView<float> y);

  /// Rotates in place: x [rows, groups * group_stride], the R values that start at column
  /// g * group_stride + offset of every group g (a group is a head).
  void (*rotate)(ThreadPool& pool, MatrixView<float> x, int32_t groups, int32_t group_stride,
                 int32_t offset, const RotaryRows& rotary);

  /// Writes one cache entry per row: the latent kv[r, 0:L] normalised (rms_norm with `weight`,
  /// `eps`), then kv[r, L:L+R] rotated. Rows with slot_mapping[r] < 0 write nothing.
  void (*write_latent)(ThreadPool& pool, MatrixView<const float> kv, const float* weight, float eps,
                       const RotaryRows& rotary, const int64_t* slot_mapping, LayerCache cache);

  /// Reads cache entries back: latent [n, L] and rope [n, R] of the `n` consecutive positions from
  /// first_position on of a request with this block table.
  void (*gather_latent)(ThreadPool& pool, LayerCache cache, const int32_t* block_table,
                        int32_t first_position, MatrixView<float> latent, MatrixView<float> rope);

  /// Writes one cache entry per row as it is: entries [rows, width]. Rows with slot_mapping[r] < 0
  /// write nothing.
  void (*write_entries)(ThreadPool& pool, MatrixView<const float> entries,
                        const int64_t* slot_mapping, LayerCache cache);

  void (*absorbed_attention)(ThreadPool& pool, const AbsorbedAttentionArgs& args);

  void (*per_head_attention)(ThreadPool& pool, const PerHeadAttentionArgs& args);

  void (*expanded_attention)(ThreadPool& pool, const ExpandedAttentionArgs& args);

  /// out[r] += sum over j in order of weights[r * top_k + j] * y.row(rows[r * top_k + j]);
  /// out [R, n], y [any, n].
  void (*combine_experts)(ThreadPool& pool, MatrixView<const float> y, const int32_t* rows,
                          const float* weights, int32_t top_k, MatrixView<float> out);
};

/// The table for this instruction set. `isa` must not exceed DetectIsa().
const KernelTable& GetKernels(Isa isa);

}  // namespace outrider
