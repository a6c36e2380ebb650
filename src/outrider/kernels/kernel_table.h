// The kernels of one CPU instruction set, as a table of functions.
//
// Activations are float32. Every entry is row-invariant: the bits of an output row depend on the
// inputs of that row alone. They do not depend on the number of rows or requests in the call, on
// their order, or on the number of threads. `reference/` implements every entry in plain C++ and so
// defines it; tests/kernels compares the other tables with it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "outrider/base/cpu_features.h"
#include "outrider/base/dtype.h"
#include "outrider/base/function_ref.h"
#include "outrider/base/matrix_view.h"
#include "outrider/base/thread_pool.h"
#include "outrider/kernels/packed_matrix.h"
#include "outrider/kv/layer_cache.h"

namespace outrider {

/// One matrix product y = x W^T, or y += x W^T.
///
/// Order of a sum. Each output is one chain of fused multiply-adds over k = 0, 1, ..., from zero.
/// So all tables with float32 FMA give the same bits. 8-bit weights:
///   kF8E4M3: x[k] is multiplied by the scale of the weight's block (one float32 product), and the
///            chain runs over codes. A table may carry a power of two along the chain; results
///            then differ by less than 2^-100.
///   kI8:     the chain runs over codes, and the finished sum is multiplied by the row's scale.
/// Weights of kF4E2M1 are bfloat16 values, with the order that kBF16 has in every table; those of
/// kI4 are float32 values, with the order of kF32. With row_scales the finished sum is multiplied
/// by the row's scale. With `accumulate` the finished sum is added to y.
///
/// Two tables use another order when operand_dtype is bfloat16 and the weights are not kF32:
///   amx (the order of TDPBF16PS): the columns come in tiles of 32. In a tile the even columns are
///     one chain from zero and the odd columns another; (even + odd) is added to the sum.
///     Subnormal numbers count as zero.
///   avx512_bf16 (the order of VDPBF16PS): one chain from zero, in which the odd column of each
///     pair comes before the even one. Subnormal operands and results count as zero.
/// With kF8E4M3 both tables sum the codes of the columns of one scale in that order, and add that
/// sum times the scale to the total by one FMA. If scale_cols is not a multiple of 32, or is more
/// than 256, they use the plain chain.
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
  std::span<int32_t> columns;       // [rows], the result; -1 where the largest is infinite or NaN
  std::span<float> values = {};     // optional [rows]: the largest outputs, infinity for NaN
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
/// Over a bfloat16 cache the elements of q and the softmax weights exp(s_t - m) are rounded to
/// bfloat16 (nearest even) before they are multiplied; m is the largest score of t's split. The
/// weighted sum is divided by the sum of the rounded weights.
struct AbsorbedAttentionArgs {
  MatrixView<const float>
      q;  // [rows, heads * (L + R)]: per head the absorbed query, then rotated rope
  int32_t heads = 0;
  /// Heads of the model, where several ranks share them: the order of sums depends on this number,
  /// and not on how many are in the call. 0: heads.
  int32_t model_heads = 0;
  int32_t latent = 0;  // L
  int32_t rope = 0;    // R
  float scale = 0;
  LayerCache cache;
  std::span<const AttentionSpan> requests;
  MatrixView<float> out;        // [rows, heads * L]
  int32_t split = kPagedSplit;  // other values change the bits; for measurements only
};

/// Attention over the paged cache of per-head entries, with the rounding of AbsorbedAttentionArgs.
/// For row r, head h, g = h / (heads / kv_heads)
///   k_t = [entry_t.key[g] ; entry_t.rotated], s_t = scale * dot(q[r, h], k_t),
///   out[r, h] = sum_t softmax(s)_t * entry_t.value[g].
/// So consecutive heads share a key and a value if kv_heads is less than heads (grouped-query
/// attention, arXiv:2305.13245). With a window row r sees only the last `window` keys up to its
/// own (sliding-window attention); blocks of the table that no row sees are not read.
struct PerHeadAttentionArgs {
  MatrixView<const float> q;  // [rows, heads * (P + R)]: per head nope then rotated rope
  int32_t heads = 0;
  int32_t kv_heads = 0;  // heads of an entry; divides heads
  int32_t window = 0;    // keys, the row's own included; 0: all
  int32_t nope = 0;      // P
  int32_t rope = 0;      // R
  int32_t value = 0;     // V
  float scale = 0;
  LayerCache cache;
  std::span<const AttentionSpan> requests;
  MatrixView<float> out;  // [rows, heads * V]
};

/// Entries per partial softmax of attention over listed entries.
inline constexpr int32_t kListedSplit = 256;

/// Attention of heads that read the same entries, each key and value at once, which a list names:
/// for row r, head h, over the entries e of r's list, with v_e the first V numbers of e,
///   s_e = scale * dot(q[r, h], e),  out[r, h] = sum_e exp(s_e) v_e / (sum_e exp(s_e) +
///   exp(sink[h])).
/// A list is cut into parts of kListedSplit entries, which merge in order; over bfloat16 entries
/// with the rounding of AbsorbedAttentionArgs, where m is the largest score of the part.
struct ListedAttentionArgs {
  MatrixView<const float> q;  // [rows, heads * D]
  int32_t heads = 0;
  int32_t width = 0;        // D
  int32_t value_width = 0;  // V, at most D
  float scale = 0;
  const float* sinks = nullptr;  // [heads]; null: none
  DType dtype = DType::kBF16;    // of the entries, kF32 or kBF16
  int64_t most_entries = 0;      // of a list
  MatrixView<float> out;         // [rows, heads * V]
  /// list(row, entries): writes where the entries are, at least one, and returns how many. Called
  /// once or more per row, on any thread.
  FunctionRef<int64_t(int64_t, const std::byte**)> list;
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

/// The `limit` of silu_mul that cuts nothing.
inline constexpr float kNoLimit = std::numeric_limits<float>::infinity();

struct KernelTable {
  std::string_view name;

  /// FP8 matrices that are used together and have at most this many weights should be packed as
  /// bfloat16. They stay in a cache, where these kernels read bfloat16 faster than they widen
  /// codes.
  int64_t max_fp8_weights_as_bf16 = 0;

  /// Runs all jobs as one task list. With operand_dtype kBF16 the elements of x are rounded to
  /// bfloat16 (nearest even) before they are multiplied; sums are float32 in both cases.
  void (*matmul)(ThreadPool& pool, std::span<const MatMulJob> jobs, DType operand_dtype);

  /// columns[r] = the column of the largest output of row r, the lowest one among equals. Outputs
  /// have the bits of matmul and are not stored. The result is -1 where the largest output is
  /// infinite or an output is NaN.
  void (*matmul_arg_max)(ThreadPool& pool, const ArgMaxJob& job, DType operand_dtype);

  /// y[r] = weight * (x[r] / sqrt(mean(x[r]^2) + eps)) (Zhang and Sennrich 2019). x and y
  /// [rows, n], y may be x; weight [n].
  void (*rms_norm)(ThreadPool& pool, MatrixView<const float> x, const float* weight, float eps,
                   MatrixView<float> y);

  /// y[r, i] = min(silu(x[r, i]), limit) * clamp(x[r, n + i], -limit, limit); x [rows, 2 n] (gate,
  /// then up), y [rows, n]. limit kNoLimit: silu(x[r, i]) * x[r, n + i].
  void (*silu_mul)(ThreadPool& pool, MatrixView<const float> x, float limit, MatrixView<float> y);

  /// x[r, h * n + i] *= sigmoid(gates[r, h]); gates [rows, heads], x [rows, heads * n]. The sigmoid
  /// has the same bits in every table.
  void (*gate_heads)(ThreadPool& pool, MatrixView<const float> gates, MatrixView<float> x);

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

  void (*listed_attention)(ThreadPool& pool, const ListedAttentionArgs& args);

  void (*expanded_attention)(ThreadPool& pool, const ExpandedAttentionArgs& args);

  /// out[r] += sum over j in order of weights[r * top_k + j] * y.row(rows[r * top_k + j]);
  /// out [R, n], y [any, n].
  void (*combine_experts)(ThreadPool& pool, MatrixView<const float> y, const int32_t* rows,
                          const float* weights, int32_t top_k, MatrixView<float> out);

  /// out[i] += sum over j in order of weights[j] * y[j][i], one chain of fused multiply-adds from
  /// zero; y [count] rows of n. Of one row, on the caller's thread.
  void (*add_weighted)(const float* const* y, const float* weights, int64_t count, int64_t n,
                       float* out);
};

/// The table for this instruction set. `isa` must not exceed DetectIsa().
const KernelTable& GetKernels(Isa isa);

}  // namespace outrider
