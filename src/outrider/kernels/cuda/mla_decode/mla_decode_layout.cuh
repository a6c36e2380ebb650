// What the MLA decode plan, the main kernels and the combine kernel share: the work list's records,
// where they lie in the workspace, and the arithmetic that folds splits.
#pragma once

#include <cuda_bf16.h>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"

namespace outrider::cuda {

/// One block's task: a row tile of a request against keys [key_begin, key_end), whole splits. It
/// makes the output, or leaves partial results in the workspace, in units of 16 rows. Of a tile
/// that two items share (bf16), the first part leaves one result, and the second goes on from it
/// and makes the output.
struct alignas(32) MlaItem {
  int request;
  int key_begin;
  int key_end;
  int result_bits;  // -1: the output; unit, kFirstPart + unit, or -2 - unit
  int first_row;    // of the tile in q's rows (token * heads + head)
  int rows_bits;    // low 8 bits: rows of the tile; above: the first one's index in its request
  int seq_len;
  int context;  // seq_len - query length

  static constexpr int kFirstPart = 1 << 30;

  __host__ __device__ __forceinline__ void MakeOutput() { result_bits = -1; }
  __host__ __device__ __forceinline__ void LeavePartials(int unit) { result_bits = unit; }
  __host__ __device__ __forceinline__ void BeFirstPart(int unit) {
    result_bits = kFirstPart + unit;
  }
  __host__ __device__ __forceinline__ void BeSecondPart(int unit) { result_bits = -2 - unit; }
  /// Partial results, also as a first part; else the output.
  __host__ __device__ __forceinline__ bool leaves_partials() const { return result_bits >= 0; }
  __host__ __device__ __forceinline__ bool is_second_part() const { return result_bits < -1; }
  /// The first unit of the partial results.
  __host__ __device__ __forceinline__ int unit() const { return result_bits & (kFirstPart - 1); }
  /// The first unit of the partial results in a step without shared tiles.
  __host__ __device__ __forceinline__ int unshared_unit() const { return result_bits; }
  /// The unit that a second part goes on from; negative for other items.
  __host__ __device__ __forceinline__ int earlier_unit() const { return -2 - result_bits; }

  __host__ __device__ __forceinline__ void SetRows(int first, int count) {
    rows_bits = count | (first << 8);
  }
  __host__ __device__ __forceinline__ int num_rows() const { return rows_bits & 255; }
  __host__ __device__ __forceinline__ int row_in_request() const { return rows_bits >> 8; }
};
static_assert(sizeof(MlaItem) == 8 * sizeof(int));  // ItemOfWords

/// A row tile whose partial results must be folded, or one without keys (count 0).
struct alignas(32) MlaFoldTile {
  int first_row;
  int rows;
  int first_unit;
  int count;  // partial results, in order of position, (rows + 15) / 16 units apart
  int items;  // that leave them
  int plan;   // TilePlanIndex
  int pad[2];
};

/// How the plan cuts a row tile: it stays whole, two items share it, or it is cut in pieces.
struct alignas(16) MlaTilePlan {
  int pieces_bits;  // pieces, or -position of a shared tile
  int partials;     // results that are folded
  int first_unit;   // of these; -1: none
  int last_bits;    // the number of a whole tile, or reports

  __host__ __device__ __forceinline__ bool is_uncut() const { return pieces_bits <= 1; }
  __host__ __device__ __forceinline__ int pieces() const { return pieces_bits; }
  __host__ __device__ __forceinline__ bool is_shared() const { return pieces_bits < 0; }
  /// Where the second item of a shared tile begins, > 0.
  __host__ __device__ __forceinline__ int position() const { return -pieces_bits; }

  // While the plan is made: a tile's number among those that stay whole, or -1.
  __host__ __device__ __forceinline__ void SetWholeNumber(int number) { last_bits = number; }
  __host__ __device__ __forceinline__ int whole_number() const { return last_bits; }
  __host__ __device__ __forceinline__ bool is_numbered() const { return last_bits >= 0; }

  // Afterwards: items that have left results.
  __host__ __device__ __forceinline__ void ClearReports() { last_bits = 0; }
  __host__ __device__ __forceinline__ int* reports() { return &last_bits; }
};

/// Row tiles whose partial results are folded, and the most rows that one of them has.
struct MlaFoldCount {
  int tiles;
  int rows;
};

struct MlaCounters {
  int num_items;
  int next_item;    // beyond the first item of each block; the end of a run sets it back to 0
  int epoch;        // runs since the plan (bf16)
  int left_blocks;  // of the current run (bf16)
  int late_claims;  // whether blocks take their next item late (LoadWalk)
  MlaFoldCount folds;
  int used_units;
};

inline constexpr int kMlaUnitRows = 16;
inline constexpr int kMlaLeastTileRows = 16;
inline constexpr int kMlaMaxBlocks = 132;
inline constexpr int kMlaGroupBits = 5;  // a page has up to 32 groups of 8 keys

/// Pointers into the workspace.
struct MlaWorkspace {
  MlaCounters* counters;
  MlaItem* items;
  MlaFoldTile* fold_tiles;
  MlaTilePlan* tile_plans;  // by TilePlanIndex
  float2* partial_stats;    // [units, 16]: reference (log2 domain) and sum
  float* partial_outputs;   // [units, 16, 512], not divided by the sum; bf16 body: float16 columns
  int num_units;
  size_t bytes;
};

/// Where an item's row tile is among all of a step's (bf16).
__device__ __forceinline__ int TilePlanIndex(const MlaItem& item) {
  const int row = item.row_in_request();
  return (item.first_row - row) / kMlaTileRows + item.request + row / kMlaTileRows;
}

/// The size of the splits at `key`, as a power of two, and where the first of that size begins.
struct SplitSize {
  int shift;
  int start;
  __device__ __forceinline__ SplitSize(const MlaSplits& splits, int key) {
    shift = 31 - __clz(splits.base);
    start = 0;
    if (key >= splits.end1) {
      shift += 2;
      start = splits.end1;
    } else if (key >= splits.end0) {
      shift += 1;
      start = splits.end0;
    }
  }
};

/// First split boundary after `key`.
__device__ __forceinline__ int NextSplit(const MlaSplits& splits, int key) {
  const SplitSize size(splits, key);
  return size.start + ((((key - size.start) >> size.shift) + 1) << size.shift);
}

/// Number of splits that cover `keys` keys.
__device__ __forceinline__ int CountSplits(const MlaSplits& splits, int keys) {
  const int shift = 31 - __clz(splits.base);
  const int first = min(keys, splits.end0);
  const int second = max(0, min(keys, splits.end1) - splits.end0);
  const int third = max(0, keys - splits.end1);
  return ((first + splits.base - 1) >> shift) + ((second + 2 * splits.base - 1) >> (shift + 1)) +
         ((third + 4 * splits.base - 1) >> (shift + 2));
}

/// The split boundary nearest to `key`.
__device__ __forceinline__ int NearestSplit(const MlaSplits& splits, int key) {
  const SplitSize size(splits, key);
  const int before = size.start + ((key - size.start) >> size.shift << size.shift);
  const int after = before + (1 << size.shift);
  return after - key <= key - before ? after : before;
}

/// Weights with which a running result (reference, sum) and the next split's are added. Like within
/// a split, the reference moves only when it has grown by more than 2^8, so `a` is nearly always 1
/// and the next split can be added to memory without reading it. A split without visible keys
/// (-inf, 0) leaves the running result alone.
__device__ __forceinline__ float FoldReference(float running, float next) {
  return next - running > 8.0f ? next : running;
}
__device__ __forceinline__ void FoldWeights(float running, float next, float* reference, float* a,
                                            float* b) {
  const bool grow = next - running > 8.0f;
  *reference = FoldReference(running, next);
  *a = grow ? Exp2(running - next) : 1.0f;
  *b = grow ? 1.0f : next == -INFINITY ? 0.0f : Exp2(next - running);
}
/// running * a + next * b. The sum flushes subnormal numbers as reductions in global memory do.
__device__ __forceinline__ float Fold(float running, float next, float a, float b) {
  float sum;
  asm("add.rn.ftz.f32 %0, %1, %2;"
      : "=f"(sum)
      : "f"(__fmul_rn(running, a)), "f"(__fmul_rn(next, b)));
  return sum;
}

/// The factor that turns an accumulated row, kept multiplied by `unit`, into its output; and the
/// row's log-sum-exp.
__device__ __forceinline__ float FinishRow(float reference, float sum, float value_scale,
                                           const float* sink, int head, float* lse,
                                           float unit = 1.0f) {
  constexpr float kLn2 = 0.6931471805599453f;
  constexpr float kLog2e = 1.4426950408889634f;
  if (!(sum > 0.0f)) {
    *lse = -INFINITY;
    return 0.0f;
  }
  const float lse2 = reference + log2f(sum);
  *lse = lse2 * kLn2;
  float factor = __fdividef(value_scale, sum * unit);
  if (sink != nullptr) factor = __fdividef(factor, 1.0f + Exp2(sink[head] * kLog2e - lse2));
  return factor;
}

/// Output rounding; the sum turns -0 into +0, which an empty split would otherwise do by chance.
__device__ __forceinline__ uint32_t OutputPair(float x, float y, float factor) {
  return PackBf16(__fadd_rn(__fmul_rn(x, factor), 0.0f), __fadd_rn(__fmul_rn(y, factor), 0.0f));
}

}  // namespace outrider::cuda
