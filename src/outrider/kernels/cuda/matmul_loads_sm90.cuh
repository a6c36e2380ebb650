// The loading warp of the matrix products: weights as tensor copies of contiguous memory (bulk
// copies without a tensor map move 15 % less per multiprocessor), rows of x as tensor copies of 64
// columns with the swizzle of wgmma. Rows that have numbers come one by one.
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

/// A block's place: a cluster has a block for every segment (or one for all) and every share of x.
struct ClusterPlace {
  int cluster;
  int clusters;
  int segment;
  int share;
  int first_rank;  // of the blocks with this segment, which share x
};

template <typename Body>
__device__ __forceinline__ ClusterPlace FindPlace(const MatMulArguments& args) {
  const int blocks = args.cluster_segments * args.shares;
  const int rank = static_cast<int>(blockIdx.x) % blocks;
  ClusterPlace place;
  place.cluster = static_cast<int>(blockIdx.x) / blocks;
  place.clusters = static_cast<int>(gridDim.x) / blocks;
  place.segment = rank / args.shares;
  place.share = rank % args.shares;
  place.first_rank = place.segment * args.shares;
  return place;
}

__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// For barriers that order no memory but that of barriers just initialised.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Reads that go past the first-level cache, where an earlier kernel's list may still stand.
__device__ __forceinline__ int4 ReadTile(const ExpertTile* tile) {
  return __ldcg(reinterpret_cast<const int4*>(tile));
}

/// Tiles of all blocks. With a routing only when it is complete.
__device__ __forceinline__ int CountTiles(const MatMulArguments& args) {
  return (args.tiles != nullptr ? __ldcg(args.num_tiles) : args.row_tiles) * args.column_tiles;
}

/// Tile `index`. Blocks that run at the same time should share rows of x and of the weight: up to
/// 8 tiles over rows go together. With a routing the tiles of an expert's weight go together.
template <typename Body>
__device__ __forceinline__ MatMulTile FindTile(const MatMulArguments& args, int index, int share) {
  constexpr int kTogether = 8;
  MatMulTile tile;
  if (args.tiles != nullptr) {
    const int4 entry = ReadTile(args.tiles + index / args.column_tiles);
    tile.expert = entry.x;
    tile.first_row = entry.y;
    tile.num_rows = entry.z;
    tile.first_unit_row = (index % args.column_tiles * args.shares + share) * Body::kWarpgroups;
    return tile;
  }
  const int group = index / (kTogether * args.column_tiles);
  const int within = index % (kTogether * args.column_tiles);
  const int rows = min(kTogether, args.row_tiles - group * kTogether);
  tile.expert = 0;
  tile.first_row = (group * kTogether + within % rows) * Body::kTokens;
  tile.num_rows = min(Body::kTokens, args.rows - tile.first_row);
  tile.first_unit_row = (within / rows * args.shares + share) * Body::kWarpgroups;
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

/// The same into the blocks of a cluster whose bits are set in `blocks`.
__device__ __forceinline__ void TensorLoad2dMulticast(void* destination, const CUtensorMap* map,
                                                      uint64_t* barrier, int c0, int c1,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}

template <typename Body>
__device__ void LoadTiles(const MatMulArguments& args, typename Body::Shared& shared,
                          const ClusterPlace& place) {
  constexpr int kPerUnit = kWeightColumns / Body::kStageColumns;
  constexpr int kHalves = Body::kStageColumns / 64;
  constexpr int kNumbers = (Body::kTokens + 31) / 32;
  const int lane = threadIdx.x % 32;
  const bool routed = args.tiles != nullptr;
  const bool numbered = args.numbered;
  const int unit_rows = (args.n + kWeightRows - 1) / kWeightRows;
  const int first_unit = Body::kAllSegments ? 0 : place.segment * args.segment_units;
  const int end_unit =
      Body::kAllSegments ? args.units : min(args.units, first_unit + args.segment_units);
  const int steps = (end_unit - first_unit) * kPerUnit;
  bool waited = false;
  if (routed && !args.routing_settled) {
    WaitForPriorGrid();
    waited = true;
    LaunchDependents();
  }
  const int tiles = CountTiles(args);
  int stage = 0;
  uint32_t phase = 0;
  for (int index = place.cluster; index < tiles; index += place.clusters) {
    const MatMulTile tile = FindTile<Body>(args, index, place.share);
    // None in the last blocks that only load a share of x.
    const int groups = max(0, min(Body::kWarpgroups, unit_rows - tile.first_unit_row));
    const uint32_t x_bytes = numbered ? tile.num_rows * Body::kStageColumns * 2 : Body::kXBytes;
    const uint32_t bytes = groups * (Body::kWeightBytes + Body::kStageScaleBytes) + x_bytes;
    constexpr int kCopyRows = Body::kWeightBytes / kCopyRowBytes;
    const int first_copy_row = static_cast<int>(tile.expert * args.expert_copy_rows) +
                               (tile.first_unit_row * args.units + first_unit) *
                                   (UnitBytes(Body::kFormat) / kCopyRowBytes);
    const uint8_t* const scales =
        args.scales + tile.expert * args.expert_bytes +
        static_cast<int64_t>(tile.first_unit_row * args.units + first_unit) * kScaleBytes;
    const auto load_weights = [&](int step, int to) {
      if (lane != 0) return;
      BarrierArriveExpect(&shared.full[to], bytes);
      for (int group = 0; group < groups; ++group) {
        const int row = first_copy_row +
                        group * args.units * (UnitBytes(Body::kFormat) / kCopyRowBytes) +
                        step * kCopyRows;
        TensorLoad2d(shared.weights[to][group], &args.weights, &shared.full[to], 0, row);
        if constexpr (Body::kStageScaleBytes > 0) {
          BulkLoad(shared.scales[to][group],
                   scales + static_cast<int64_t>(group * args.units + step) * kScaleBytes,
                   kScaleBytes, &shared.full[to]);
        }
      }
    };
    int ahead = 0;
    if (index == place.cluster) {
      // Weights depend on no other kernel: as many as there is room for come before the wait.
      for (; ahead < min(steps, Body::kStages); ++ahead) load_weights(ahead, ahead);
      if (!waited) WaitForPriorGrid();
      // Not before the wait: so a kernel that reads the routing early finds it complete.
      if (routed && !waited) LaunchDependents();
      waited = true;
      if (args.shares > 1) ClusterWait();
    }
    int numbers[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int row = tile.first_row + min(i * 32 + lane, tile.num_rows - 1);
      numbers[i] = !numbered ? 0
                   : routed  ? __ldcg(args.pairs + row) / args.choices
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
          if (lane == 0 && args.shares == 1) {
            TensorLoad2d(to, &args.x_tiles, &shared.full[stage], column + half * 64,
                         tile.first_row);
          } else if (lane == 0) {
            const int first = place.share * (Body::kTokens / args.shares);
            TensorLoad2dMulticast(
                to + first * 128, &args.x_tiles, &shared.full[stage], column + half * 64,
                tile.first_row + first,
                static_cast<uint16_t>(((1 << args.shares) - 1) << place.first_rank));
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
  if (routed && !waited) LaunchDependents();
  if (args.shares > 1 && place.cluster >= tiles) ClusterWait();
}

}  // namespace outrider::cuda
