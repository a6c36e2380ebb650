// The end of the bf16 MLA decode kernel: a block that has run out of items folds partial results of
// row tiles that several blocks shared, a warp per row. Splits are folded in order of position with
// the same operations as in a block that folds them itself, so both give equal bits. A lane per
// partial result computes its weights; only the sums go one after another.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"

namespace outrider::cuda {

inline constexpr int kMergeWarps = kOutputThreads / 32;
inline constexpr int kMergeLoads = 8;                     // partial results in flight per lane
inline constexpr int kResultRowBytes = kMlaValueDim * 2;  // an output's bf16, a result's columns

/// An item has left all its partial results. One thread, after a barrier among all that wrote.
__device__ __forceinline__ void ReportResults(const MlaWorkspace& workspace, const MlaItem& item) {
  asm volatile(
      "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(&workspace.tile_plans[TilePlanIndex(item)].w)
      : "memory");
}

/// Waits until every item of a tile has reported in this run and the `epoch` before.
__device__ __forceinline__ void WaitForResults(const MlaWorkspace& workspace,
                                               const MlaFoldTile& tile, int epoch) {
  const int wanted = (epoch + 1) * tile.items;
  const int* reported = &workspace.tile_plans[tile.plan].w;
  int count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(reported) : "memory");
  } while (count - wanted < 0);
}

/// The weights of up to 32 partial results of a row: lane i has the numbers of result i and gets
/// the factors of FoldRow for it. Moves the row's state on.
__device__ __forceinline__ void FoldNumbers(float2 next, int count, MlaRowState* state,
                                            __half2* keep, __half2* add) {
  const int lane = threadIdx.x % 32;
  // References: a running maximum. What lanes past `count` hold is not used.
  float after = fmaxf(state->reference, next.x);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float left = __shfl_up_sync(~0u, after, step);
    if (lane >= step) after = fmaxf(after, left);
  }
  float before = __shfl_up_sync(~0u, after, 1);
  if (lane == 0) before = state->reference;
  const float a = before - after;
  const float b = next.x - after;
  const float kept = PowerOfTwo(a);
  const float added = __fmul_rn(next.y, PowerOfTwo(b));
  float sum = state->sum;
  float sum_before = sum;
  float sum_after = sum;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float folded =
        __fadd_rn(__fmul_rn(sum, __shfl_sync(~0u, kept, i)), __shfl_sync(~0u, added, i));
    if (lane == i) {
      sum_before = sum;
      sum_after = folded;
    }
    sum = folded;
  }
  const float exponent = MlaRowState{after, sum_after}.exponent();
  *keep = __float2half2_rn(PowerOfTwo(a + MlaRowState{before, sum_before}.exponent() - exponent));
  *add = __float2half2_rn(PowerOfTwo(b + MlaRowState{next.x, next.y}.exponent() - exponent));
  *state = {__shfl_sync(~0u, after, count - 1), sum};
}

/// Folds and writes one row of a tile. All lanes of a warp; 16 columns each.
__device__ __forceinline__ void MergeRow(const MlaKernelArguments& args, const MlaFoldTile& tile,
                                         int row) {
  const MlaWorkspace& workspace = args.workspace;
  const int lane = threadIdx.x % 32;
  const int units = (tile.rows + kMlaUnitRows - 1) / kMlaUnitRows;
  // Row `row` of partial result i is row `base + i * step` of the partial arrays.
  const size_t base = static_cast<size_t>(tile.first_unit) * kMlaUnitRows + row;
  const size_t step = static_cast<size_t>(units) * kMlaUnitRows;
  const uint8_t* results = reinterpret_cast<const uint8_t*>(workspace.partial_outputs) + lane * 16;

  __half2 columns[8] = {};
  MlaRowState state = {-INFINITY, 0.0f};
#pragma unroll 1
  for (int chunk = 0; chunk < tile.count; chunk += 32) {
    const int count = min(32, tile.count - chunk);
    float2 numbers = {-INFINITY, 0.0f};
    if (lane < count) numbers = __ldcg(&workspace.partial_stats[base + (chunk + lane) * step]);
    __half2 keep, add;
#pragma unroll 1
    for (int first = 0; first < count; first += kMergeLoads) {
      uint4 next[kMergeLoads][2];
#pragma unroll
      for (int i = 0; i < kMergeLoads; ++i) {
        // Past the end: the last one again, not used.
        const uint8_t* at =
            results + (base + (chunk + min(first + i, count - 1)) * step) * kResultRowBytes;
        next[i][0] = __ldcg(reinterpret_cast<const uint4*>(at));
        next[i][1] = __ldcg(reinterpret_cast<const uint4*>(at + kResultRowBytes / 2));
      }
      if (first == 0) FoldNumbers(numbers, count, &state, &keep, &add);
#pragma unroll
      for (int i = 0; i < kMergeLoads; ++i) {
        const __half2 keep_i = __shfl_sync(~0u, keep, first + i);
        const __half2 add_i = __shfl_sync(~0u, add, first + i);
        if (first + i >= count) continue;
        const __half2* pairs = reinterpret_cast<const __half2*>(next[i]);
#pragma unroll
        for (int j = 0; j < 8; ++j) columns[j] = FoldColumns(columns[j], pairs[j], keep_i, add_i);
      }
    }
  }
  const size_t global_row = static_cast<size_t>(tile.first_row) + row;
  float lse;
  const float factor = FinishRow(state, args.value_scale, args.sink,
                                 static_cast<int>(global_row % args.heads), &lse);
  uint4* out = reinterpret_cast<uint4*>(args.output) + global_row * (kResultRowBytes / 16) + lane;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half2* pairs = columns + 4 * i;
    out[i * 32] = make_uint4(OutputPair(pairs[0], factor), OutputPair(pairs[1], factor),
                             OutputPair(pairs[2], factor), OutputPair(pairs[3], factor));
  }
  if (lane == 0) args.lse[global_row] = lse;
}

/// The rows that fall to this warp, `warp` of kMergeWarps in its block. Blocks with the last
/// numbers, which run out of items first, come first.
__device__ __forceinline__ void MergeRows(const MlaKernelArguments& args, int warp, int epoch) {
  const MlaWorkspace& workspace = args.workspace;
  const int tiles = workspace.counters->num_fold_tiles;
  const int blocks = gridDim.x;
  // All tiles' first rows, then their second: short tiles leave nothing out in between.
  for (int index = blocks - 1 - static_cast<int>(blockIdx.x) + warp * blocks;
       index < tiles * kMlaTileRows; index += kMergeWarps * blocks) {
    const MlaFoldTile tile = workspace.fold_tiles[index % tiles];
    const int row = index / tiles;
    if (row >= tile.rows) continue;
    if (tile.count > 0) WaitForResults(workspace, tile, epoch);
    __syncwarp();
    MergeRow(args, tile, row);
  }
}

/// The last block to leave makes the workspace ready for the next run. One thread.
__device__ __forceinline__ void LeaveKernel(const MlaWorkspace& workspace, int epoch) {
  MlaCounters* counters = workspace.counters;
  if (atomicAdd(&counters->left_blocks, 1) + 1 < static_cast<int>(gridDim.x)) return;
  counters->left_blocks = 0;
  counters->next_item = 0;
  counters->epoch = epoch + 1;
}

}  // namespace outrider::cuda
