// The loading warp of the matrix products: weights as contiguous bulk copies, rows of x as tensor
// copies of 64 columns with the swizzle of wgmma. Rows that have numbers come one by one.
#pragma once

#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {

/// What a block computes: some rows of x by kWarpgroups * 64 rows of a weight.
struct MatMulTile {
  int first_unit_row;  // of the weight, in units of 64 rows
  int first_row;       // of the product; with a routing, a place
  int num_rows;
  int expert;
};

/// Tiles of all blocks. With a routing only after the kernel before has finished.
template <typename Body>
__device__ __forceinline__ int CountTiles(const MatMulArguments& args) {
  return (args.tiles != nullptr ? *args.num_tiles : args.row_tiles) * args.column_tiles;
}

/// Tile `index`. Blocks that run at the same time should share rows of x and of the weight: up to
/// 8 tiles over rows go together. With a routing the tiles of an expert's weight go together.
template <typename Body>
__device__ __forceinline__ MatMulTile FindTile(const MatMulArguments& args, int index) {
  constexpr int kTogether = 8;
  MatMulTile tile;
  if (args.tiles != nullptr) {
    const int4 entry = *reinterpret_cast<const int4*>(args.tiles + index / args.column_tiles);
    tile.expert = entry.x;
    tile.first_row = entry.y;
    tile.num_rows = entry.z;
    tile.first_unit_row = index % args.column_tiles * Body::kWarpgroups;
    return tile;
  }
  const int group = index / (kTogether * args.column_tiles);
  const int within = index % (kTogether * args.column_tiles);
  const int rows = min(kTogether, args.row_tiles - group * kTogether);
  tile.expert = 0;
  tile.first_row = (group * kTogether + within % rows) * Body::kTokens;
  tile.num_rows = min(Body::kTokens, args.rows - tile.first_row);
  tile.first_unit_row = within / rows * Body::kWarpgroups;
  return tile;
}

__device__ __forceinline__ void TensorLoad2d(void* destination, const CUtensorMap* map,
                                             uint64_t* barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1)
      : "memory");
}

/// `segment`: the block's own, of those that blocks of a cluster have.
template <typename Body>
__device__ void LoadTiles(const MatMulArguments& args, typename Body::Shared& shared,
                          int first_tile, int tile_step, int segment) {
  constexpr int kPerUnit = kWeightColumns / Body::kStageColumns;
  constexpr int kHalves = Body::kStageColumns / 64;
  constexpr int kNumbers = (Body::kTokens + 31) / 32;
  const int lane = threadIdx.x % 32;
  const bool routed = args.tiles != nullptr;
  // Which rows of x a tile reads: consecutive ones, or those that numbers say.
  const bool numbered = args.x_row_numbers != nullptr || (routed && args.gate_up);
  const int unit_rows = (args.n + kWeightRows - 1) / kWeightRows;
  const int first_unit = Body::kSegmentsInside ? 0 : segment * args.segment_units;
  const int end_unit =
      Body::kSegmentsInside ? args.units : min(args.units, first_unit + args.segment_units);
  const int steps = (end_unit - first_unit) * kPerUnit;
  bool waited = false;
  if (routed) {
    WaitForPriorGrid();
    waited = true;
  }
  const int tiles = CountTiles<Body>(args);
  int stage = 0;
  uint32_t phase = 0;
  for (int index = first_tile; index < tiles; index += tile_step) {
    const MatMulTile tile = FindTile<Body>(args, index);
    const int groups = min(Body::kWarpgroups, unit_rows - tile.first_unit_row);
    const uint32_t x_bytes = numbered ? tile.num_rows * Body::kStageColumns * 2 : Body::kXBytes;
    const uint32_t bytes = groups * Body::kWeightBytes + x_bytes;
    const uint8_t* weights = args.weights + tile.expert * args.expert_bytes +
                             (static_cast<int64_t>(tile.first_unit_row) * args.units + first_unit) *
                                 UnitBytes(Body::kFormat);
    const auto load_weights = [&](int step, int to) {
      if (lane != 0) return;
      BarrierArriveExpect(&shared.full[to], bytes);
      for (int group = 0; group < groups; ++group) {
        BulkLoad(shared.weights[to][group],
                 weights + static_cast<int64_t>(group) * args.units * UnitBytes(Body::kFormat) +
                     static_cast<int64_t>(step) * Body::kWeightBytes,
                 Body::kWeightBytes, &shared.full[to]);
      }
    };
    // Weights depend on no other kernel: as many as there is room for come before the wait.
    int ahead = 0;
    if (!waited) {
      for (; ahead < min(steps, Body::kStages); ++ahead) load_weights(ahead, ahead);
      WaitForPriorGrid();
      waited = true;
    }
    int numbers[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int row = tile.first_row + min(i * 32 + lane, tile.num_rows - 1);
      numbers[i] = !numbered ? 0
                   : routed  ? args.pairs[row] / args.choices
                             : args.x_row_numbers[row];
    }
    for (int step = 0; step < steps; ++step) {
      if (step >= ahead) {
        BarrierWait(&shared.empty[stage], phase ^ 1);
        load_weights(step, stage);
      }
      __syncwarp();
      const int column = first_unit * kWeightColumns + step * Body::kStageColumns;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        uint8_t* const to = shared.x[stage] + half * Body::kTokens * 128;
        if (!numbered) {
          if (lane == 0) {
            TensorLoad2d(to, &args.x_tiles, &shared.full[stage], column + half * 64,
                         tile.first_row);
          }
          continue;
        }
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) {
          if (i * 32 + lane < tile.num_rows) {
            TensorLoad2d(to + (i * 32 + lane) * 128, &args.x_rows_map, &shared.full[stage],
                         column + half * 64, numbers[i]);
          }
        }
      }
      if (++stage == Body::kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
  // A block without a tile must wait too: what follows takes its end for the prior grid's.
  if (!waited) WaitForPriorGrid();
}

}  // namespace outrider::cuda
