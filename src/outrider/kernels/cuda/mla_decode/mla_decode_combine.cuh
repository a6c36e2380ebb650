// e4m3: folds the partial results of row tiles whose splits ran in several blocks: one warp-quad
// (128 threads) per row, four columns per thread. Splits are folded in order of position with the
// same operations as a block that folds them itself, so both give equal bits. The loads do not
// depend on each other: sixteen are in flight at a time. (The bf16 body does it in its own kernel.)
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_layout.cuh"

namespace outrider::cuda {

struct MlaCombineArguments {
  MlaWorkspace workspace;
  int heads;
  float value_scale;
  const float* sink;
  __nv_bfloat16* output;
  float* lse;
};

inline constexpr int kCombineThreads = 128;

/// Four columns of a row.
struct FloatFold {
  using Columns = float4;
  float4 columns = {0, 0, 0, 0};
  float reference = -INFINITY;
  float sum = 0.0f;

  static __device__ Columns Load(const MlaWorkspace& workspace, size_t row, int thread) {
    return __ldcg(reinterpret_cast<const float4*>(workspace.partial_outputs) +
                  row * (kMlaValueDim / 4) + thread);
  }
  __device__ void Begin(const Columns& first, float2 stats) {
    columns = first;
    reference = stats.x;
    sum = stats.y;
  }
  __device__ void Add(const Columns& next, float2 stats) {
    float a, b;
    FoldWeights(reference, stats.x, &reference, &a, &b);
    columns.x = Fold(columns.x, next.x, a, b);
    columns.y = Fold(columns.y, next.y, a, b);
    columns.z = Fold(columns.z, next.z, a, b);
    columns.w = Fold(columns.w, next.w, a, b);
    sum = Fold(sum, stats.y, a, b);
  }
  __device__ uint2 Finish(const MlaCombineArguments& args, int head, float* lse) const {
    const float factor = FinishRow(reference, sum, args.value_scale, args.sink, head, lse);
    return make_uint2(OutputPair(columns.x, columns.y, factor),
                      OutputPair(columns.z, columns.w, factor));
  }
};

__global__ void __launch_bounds__(kCombineThreads) CombineMlaDecode(MlaCombineArguments args) {
  const MlaWorkspace& workspace = args.workspace;
  // The plan is older than the kernel before this one, which began with a wait of its own.
  const int num_rows = workspace.counters->folds.tiles * kMlaTileRows;
  MlaFoldTile tile = workspace.fold_tiles[blockIdx.x / kMlaTileRows];
  WaitForPriorGrid();
  LaunchDependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) workspace.counters->next_item = 0;
  const int thread = threadIdx.x;
  // Neighbouring blocks take different rows of one tile.
  for (int index = blockIdx.x; index < num_rows; index += gridDim.x) {
    if (index != blockIdx.x) tile = workspace.fold_tiles[index / kMlaTileRows];
    const int row = index % kMlaTileRows;
    if (row >= tile.rows) continue;
    const int units = (tile.rows + kMlaUnitRows - 1) / kMlaUnitRows;
    // Row `row` of partial result i is row `base + i * step` of the partial arrays.
    const size_t base = static_cast<size_t>(tile.first_unit) * kMlaUnitRows + row;
    const size_t step = static_cast<size_t>(units) * kMlaUnitRows;

    FloatFold fold;
    constexpr int kBatch = 16;
    for (int first = 0; first < tile.count; first += kBatch) {
      FloatFold::Columns next[kBatch];
      float2 stats[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < tile.count) {
          const size_t at = base + (first + i) * step;
          stats[i] = __ldcg(&workspace.partial_stats[at]);
          next[i] = FloatFold::Load(workspace, at, thread);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= tile.count) continue;
        if (first + i == 0) {
          fold.Begin(next[i], stats[i]);
        } else {
          fold.Add(next[i], stats[i]);
        }
      }
    }
    const int global_row = tile.first_row + row;
    float lse;
    reinterpret_cast<uint2*>(
        args.output)[static_cast<size_t>(global_row) * (kMlaValueDim / 4) + thread] =
        fold.Finish(args, global_row % args.heads, &lse);
    if (thread == 0) args.lse[global_row] = lse;
  }
}

}  // namespace outrider::cuda
