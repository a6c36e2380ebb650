// Folds the partial results of row tiles whose splits ran in several blocks: one warp-quad (128
// threads) per row, four columns per thread. Splits are folded in order of position with the same
// operations as a block that folds them itself, so both give equal bits. The loads do not depend on
// each other: sixteen are in flight at a time.
#pragma once

#include "outrider/kernels/cuda/mla_decode_layout.cuh"

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

__global__ void __launch_bounds__(kCombineThreads) CombineMlaDecode(MlaCombineArguments args) {
  WaitForPriorGrid();
  LaunchDependents();
  const MlaWorkspace& workspace = args.workspace;
  if (blockIdx.x == 0 && threadIdx.x == 0) workspace.counters->next_item = 0;
  const int num_rows = workspace.counters->num_fold_tiles * kMlaTileRows;
  const int thread = threadIdx.x;
  // Neighbouring blocks take different rows of one tile.
  for (int index = blockIdx.x; index < num_rows; index += gridDim.x) {
    const MlaFoldTile tile = workspace.fold_tiles[index / kMlaTileRows];
    const int row = index % kMlaTileRows;
    if (row >= tile.rows) continue;
    const int units = (tile.rows + kMlaUnitRows - 1) / kMlaUnitRows;
    // Row `row` of partial result i is row `base + i * step` of the partial arrays.
    const size_t base = static_cast<size_t>(tile.first_unit) * kMlaUnitRows + row;
    const size_t step = static_cast<size_t>(units) * kMlaUnitRows;
    const float4* outputs = reinterpret_cast<const float4*>(workspace.partial_outputs);

    float4 sum_o = make_float4(0, 0, 0, 0);
    float reference = -INFINITY;
    float sum = 0.0f;
    constexpr int kBatch = 16;
    for (int first = 0; first < tile.count; first += kBatch) {
      float4 next[kBatch];
      float2 stats[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < tile.count) {
          const size_t at = base + (first + i) * step;
          stats[i] = __ldcg(&workspace.partial_stats[at]);
          next[i] = __ldcg(&outputs[at * (kMlaValueDim / 4) + thread]);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < tile.count) {
          if (first + i == 0) {
            sum_o = next[0];
            reference = stats[0].x;
            sum = stats[0].y;
          } else {
            float a, b;
            FoldWeights(reference, stats[i].x, &reference, &a, &b);
            sum_o.x = Fold(sum_o.x, next[i].x, a, b);
            sum_o.y = Fold(sum_o.y, next[i].y, a, b);
            sum_o.z = Fold(sum_o.z, next[i].z, a, b);
            sum_o.w = Fold(sum_o.w, next[i].w, a, b);
            sum = Fold(sum, stats[i].y, a, b);
          }
        }
      }
    }
    const int global_row = tile.first_row + row;
    float lse;
    const float factor =
        FinishRow(reference, sum, args.value_scale, args.sink, global_row % args.heads, &lse);
    uint2 packed;
    packed.x = OutputPair(sum_o.x, sum_o.y, factor);
    packed.y = OutputPair(sum_o.z, sum_o.w, factor);
    reinterpret_cast<uint2*>(
        args.output)[static_cast<size_t>(global_row) * (kMlaValueDim / 4) + thread] = packed;
    if (thread == 0) args.lse[global_row] = lse;
  }
}

}  // namespace outrider::cuda
