// The end of the bf16 MLA decode kernel: a block that has run out of items folds partial results of
// row tiles that several blocks shared, two rows per warp or, with few rows, per two or four
// warps. Splits are folded in order of position with the same operations as in a block that folds
// them itself, so both give equal bits. A lane per partial result computes its weights; only the
// sums go one after another.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_block.cuh"

namespace outrider::cuda {

inline constexpr int kMergeWarps = kOutputThreads / 32;
inline constexpr int kResultRowBytes = kMlaValueDim * 2;  // an output's bf16

/// Makes outputs of folded columns of row `row` (token * heads + head): of eight columns from
/// `eight` on of half `half`, this lane has two, numbers 2 * (lane % 4) and the next. They are
/// multiplied by `factor` and rounded.
struct PlainResults {
  __device__ __forceinline__ uint32_t operator()(int64_t /*row*/, int /*half*/, int /*eight*/,
                                                 __half2 columns, float factor) const {
    return OutputPair(columns, factor);
  }
};

/// An item has left all its partial results. One thread, after a barrier among all that wrote.
__device__ __forceinline__ void ReportResults(const MlaWorkspace& workspace, const MlaItem& item) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(
                   workspace.tile_plans[TilePlanIndex(item)].reports())
               : "memory");
}

/// Waits until the `items` items of tile `plan` (TilePlanIndex) have reported in this run and the
/// `epoch` before.
__device__ __forceinline__ void WaitForResults(const MlaWorkspace& workspace, int plan, int items,
                                               int epoch) {
  const int wanted = (epoch + 1) * items;
  const int* reported = workspace.tile_plans[plan].reports();
  int count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(reported) : "memory");
  } while (count - wanted < 0);
}

/// The weights of up to 32 partial results of two rows: lane i has the numbers of result i and gets
/// the factors of FoldRow for it. Moves the rows' states on.
__device__ __forceinline__ void FoldNumbers(const float2 (&next)[2], int count,
                                            MlaRowState (&state)[2], __half2 (&keep)[2],
                                            __half2 (&add)[2]) {
  const int lane = threadIdx.x % 32;
  float before[2], after[2], a[2], b[2], kept[2], added[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // References: a running maximum. What lanes past `count` hold is not used.
    after[r] = fmaxf(state[r].reference, next[r].x);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float left = __shfl_up_sync(~0u, after[r], step);
      if (lane >= step) after[r] = fmaxf(after[r], left);
    }
    before[r] = __shfl_up_sync(~0u, after[r], 1);
    if (lane == 0) before[r] = state[r].reference;
    a[r] = before[r] - after[r];
    b[r] = next[r].x - after[r];
    kept[r] = PowerOfTwo(a[r]);
    added[r] = __fmul_rn(next[r].y, PowerOfTwo(b[r]));
  }
  float sum[2] = {state[0].sum, state[1].sum};
  float sum_before[2] = {sum[0], sum[1]};
  float sum_after[2] = {sum[0], sum[1]};
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float folded =
          __fadd_rn(__fmul_rn(sum[r], __shfl_sync(~0u, kept[r], i)), __shfl_sync(~0u, added[r], i));
      if (lane == i) {
        sum_before[r] = sum[r];
        sum_after[r] = folded;
      }
      sum[r] = folded;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float exponent = MlaRowState{after[r], sum_after[r]}.exponent();
    const float exponent_before = MlaRowState{before[r], sum_before[r]}.exponent();
    const float exponent_next = MlaRowState{next[r].x, next[r].y}.exponent();
    keep[r] = __float2half2_rn(PowerOfTwo(a[r] + exponent_before - exponent));
    add[r] = __float2half2_rn(PowerOfTwo(b[r] + exponent_next - exponent));
    state[r] = {__shfl_sync(~0u, after[r], count - 1), sum[r]};
  }
}

/// Half `group` of the columns of 16 rows of a partial result: as they lie in the registers of the
/// warp that left them (FoldColumns), columns[4 i] to columns[4 i + 3] of lane l at 32 i + l.
__device__ __forceinline__ uint4* ResultColumns(const MlaWorkspace& workspace, size_t unit,
                                                int group) {
  return reinterpret_cast<uint4*>(workspace.partial_outputs) + (2 * unit + group) * 512;
}

/// Folds and writes rows `row` and `row` + 8 of a tile (the first eight of a unit), or one of
/// `kParts` parts of their columns. All lanes of a warp.
template <int kParts, typename Results>
__device__ __forceinline__ void MergeRows(const MlaKernelArguments& args, const MlaFoldTile& tile,
                                          int row, int part, const Results& results) {
  constexpr int kQuads = 4 / kParts;  // of words, per lane and result: two columns of either row
  constexpr int kLoads = 4 * kParts;  // results in flight
  const MlaWorkspace& workspace = args.workspace;
  const int lane = threadIdx.x % 32;
  const int units = (tile.rows + kMlaUnitRows - 1) / kMlaUnitRows;
  const int first_unit = tile.first_unit + row / kMlaUnitRows;
  const int numbers_row[2] = {row % kMlaUnitRows, min(row + 8, tile.rows - 1) % kMlaUnitRows};
  // Quad q is eight of the sixteen quads of half q / 2: 128 columns among the lanes.
  const int place = lane / 4 * 32 + row % 8 * 4 + lane % 4;

  __half2 columns[kQuads][4] = {};
  MlaRowState state[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
#pragma unroll 1
  for (int chunk = 0; chunk < tile.count; chunk += 32) {
    const int count = min(32, tile.count - chunk);
    float2 numbers[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    if (lane < count) {
      const float2* at = workspace.partial_stats +
                         static_cast<size_t>(first_unit + (chunk + lane) * units) * kMlaUnitRows;
#pragma unroll
      for (int i = 0; i < 2; ++i) numbers[i] = __ldcg(at + numbers_row[i]);
    }
    __half2 keep[2], add[2];
#pragma unroll 1
    for (int first = 0; first < count; first += kLoads) {
      uint4 next[kLoads][kQuads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        // Past the end: the last one again, not used.
        const size_t unit = first_unit + (chunk + min(first + i, count - 1)) * units;
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          const int quad = part * kQuads + j;
          next[i][j] = __ldcg(ResultColumns(workspace, unit, quad / 2) + quad % 2 * 256 + place);
        }
      }
      if (first == 0) FoldNumbers(numbers, count, state, keep, add);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        __half2 keep_i[2], add_i[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          keep_i[r] = __shfl_sync(~0u, keep[r], first + i);
          add_i[r] = __shfl_sync(~0u, add[r], first + i);
        }
        if (first + i >= count) continue;
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          const uint32_t words[4] = {next[i][j].x, next[i][j].y, next[i][j].z, next[i][j].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            columns[j][k] =
                FoldColumns(columns[j][k], HalvesOf(words[k]), keep_i[k % 2], add_i[k % 2]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + 8 * i >= tile.rows) break;
    const size_t global_row = static_cast<size_t>(tile.first_row) + row + 8 * i;
    float lse;
    const float factor = FinishRow(state[i], args.value_scale, args.sink,
                                   static_cast<int>(global_row % args.heads), &lse);
    uint32_t* out = reinterpret_cast<uint32_t*>(args.output) + global_row * (kMlaValueDim / 2);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      // Columns 16 (lane / 4) + 2 (lane % 4) of the quad's 128, and 8 further on.
      const int quad = part * kQuads + j;
      uint32_t* at = out + quad * 64 + lane / 4 * 8 + lane % 4;
      const int eight = quad % 2 * 128 + lane / 4 * 16;
      const auto row_of_q = static_cast<int64_t>(global_row);
      at[0] = results(row_of_q, quad / 2, eight, columns[j][i], factor);
      at[4] = results(row_of_q, quad / 2, eight + 8, columns[j][2 + i], factor);
    }
    if (lane == 0 && part == 0) args.lse[global_row] = lse;
  }
}

template <int kParts, typename Results>
__device__ __forceinline__ void MergeTiles(const MlaKernelArguments& args, MlaFoldCount folds,
                                           int warp, int epoch, bool rehearses,
                                           const Results& results) {
  const int blocks = gridDim.x;
  const int pairs = (folds.rows + kMlaUnitRows - 1) / kMlaUnitRows * 8;  // of rows, per tile
  const int all = folds.tiles * pairs * kParts;
  // With little to do half of the blocks can leave, and what comes after this kernel begin there.
  const int busy = all <= 2 * blocks ? min(all, blocks / 2) : blocks;
  const int block = blocks - 1 - static_cast<int>(blockIdx.x);
  if (block >= busy) return;
  // All tiles' first rows, then their second: short tiles leave nothing out in between.
  for (int index = block + warp * busy; index < all; index += kMergeWarps * busy) {
    const MlaFoldTile tile = args.workspace.fold_tiles[index / kParts % folds.tiles];
    const int pair = index / kParts / folds.tiles;
    const int row = pair / 8 * kMlaUnitRows + pair % 8;
    if (row >= tile.rows) continue;
    // Who has nothing else to do rehearses with what is there, so that the code has come when the
    // results do. The same thread writes the true output over what that gives.
#pragma unroll 1
    for (int last = rehearses ? 0 : 1; last < 2; ++last) {
      if (tile.count > 0 && last == 1) WaitForResults(args.workspace, tile.plan, tile.items, epoch);
      __syncwarp();
      MergeRows<kParts>(args, tile, row, index % kParts, results);
    }
    rehearses = false;
  }
}

/// What falls to this warp, `warp` of kMergeWarps in its block. Blocks with the last numbers, which
/// run out of items first, come first. The fewer rows, the more warps share two of them.
/// `rehearses`: this block has had no item.
/// Sharing pays as long as half of all warps suffice (measured).
template <typename Results = PlainResults>
__device__ __forceinline__ void MergeResults(const MlaKernelArguments& args, int warp, int epoch,
                                             bool rehearses, const Results& results = {}) {
  const MlaFoldCount folds = args.workspace.counters->folds;
  const int units = folds.tiles * ((folds.rows + kMlaUnitRows - 1) / kMlaUnitRows);
  if (units <= 16) {
    MergeTiles<4>(args, folds, warp, epoch, rehearses, results);
  } else if (units <= 32) {
    MergeTiles<2>(args, folds, warp, epoch, rehearses, results);
  } else {
    MergeTiles<1>(args, folds, warp, epoch, rehearses, results);
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
