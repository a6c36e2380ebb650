// The loading warp of the matrix products: weights as tensor copies of contiguous memory (bulk
// copies without a tensor map move 15 % less per multiprocessor), rows of x as tensor copies of 64
// columns with the swizzle of wgmma. Rows that have numbers come one by one.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul/matmul_layout.h"

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
  return (args.tiles != nullptr ? __ldcg(args.num_tiles) * args.parts : args.row_tiles) *
         args.column_tiles;
}

/// Tile `index`. Blocks that run at the same time should share rows of x and of the weight: up to
/// 8 tiles over rows go together. With a routing the tiles of an expert's weight go together; some
/// may have no rows.
template <typename Body>
__device__ __forceinline__ MatMulTile FindTile(const MatMulArguments& args, int index, int share) {
  constexpr int kTogether = 8;
  MatMulTile tile;
  if (args.tiles != nullptr) {
    const int listed = index / args.column_tiles;
    const int4 entry = ReadTile(args.tiles + listed / args.parts);
    const int first = listed % args.parts * Body::kTokens;
    tile.expert = entry.x;
    tile.first_row = entry.y + first;
    tile.num_rows = min(Body::kTokens, entry.z - first);
    tile.first_unit_row = (index % args.column_tiles * args.shares + share) * Body::kWarpgroups;
    return tile;
  }
  const int group = index / (kTogether * args.column_tiles);
  const int within = index % (kTogether * args.column_tiles);
  const int rows = min(kTogether, args.row_tiles - group * kTogether);
  tile.expert = 0;
  tile.first_row = (group * kTogether + within % rows) * args.tile_tokens;
  tile.num_rows = min(args.tile_tokens, args.rows - tile.first_row);
  tile.first_unit_row = (within / rows * args.shares + share) * Body::kWarpgroups;
  return tile;
}

__device__ __forceinline__ void TensorLoad2d(void* destination, const CUtensorMap* map,
                                             uint64_t* barrier, int c0, int c1,
                                             uint64_t policy = kNoPolicy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}

/// Loads a tile into the blocks of a cluster whose bits are set in `blocks`.
__device__ __forceinline__ void TensorLoad2dMulticast(void* destination, const CUtensorMap* map,
                                                      uint64_t* barrier, int c0, int c1,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(SharedAddress(destination)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}

/// One lane's copies of the weights of a stage, kWarpgroups times those of 64 rows.
template <typename Body>
struct WeightCopies {
  static constexpr int kUnitRows = UnitBytes(Body::kFormat) / kCopyRowBytes;  // of the tensor map
  int groups;             // 0 in the last blocks, which only load a share of x
  int first;              // row of the tensor map
  int group_rows;         // between warpgroups
  const uint8_t* scales;  // of blocks
  int64_t group_scales;   // between warpgroups

  __device__ __forceinline__ WeightCopies(const MatMulArguments& args, const MatMulTile& tile,
                                          int first_unit)
      : groups(max(0, min(Body::kWarpgroups,
                          (args.n + kWeightRows - 1) / kWeightRows - tile.first_unit_row))),
        first(static_cast<int>(tile.expert * args.expert_copy_rows) +
              (tile.first_unit_row * args.units + first_unit) * kUnitRows),
        group_rows(args.units * kUnitRows) {
    if constexpr (Body::kStageScaleBytes > 0) {
      scales = args.scales + tile.expert * args.expert_bytes +
               static_cast<int64_t>(tile.first_unit_row * args.units + first_unit) * kScaleBytes;
      group_scales = static_cast<int64_t>(args.units) * kScaleBytes;
    }
  }
  __device__ __forceinline__ int Bytes() const {
    return groups * (Body::kWeightBytes + Body::kStageScaleBytes);
  }
  __device__ __forceinline__ void Issue(const MatMulArguments& args, typename Body::Shared& shared,
                                        int step, int stage, uint32_t stage_bytes) const {
    BarrierArriveExpect(&shared.full[stage], stage_bytes);
    for (int group = 0; group < groups; ++group) {
      TensorLoad2d(shared.weights[stage][group], &args.weights, &shared.full[stage], 0,
                   first + group * group_rows + step * (Body::kWeightBytes / kCopyRowBytes),
                   args.weights_once ? kEvictFirst : kNoPolicy);
      if constexpr (Body::kStageScaleBytes > 0) {
        BulkLoad(shared.scales[stage][group],
                 scales + group * group_scales + static_cast<int64_t>(step) * kScaleBytes,
                 kScaleBytes, &shared.full[stage]);
      }
    }
  }
};

/// The copies of a stage's rows of x: one box, or as many boxes as the tile has rows for, or a
/// share of a box for all blocks that share it.
template <typename Body>
__device__ __forceinline__ void IssueRows(const MatMulArguments& args,
                                          typename Body::Shared& shared, const MatMulTile& tile,
                                          const ClusterPlace& place, int column, int stage) {
#pragma unroll
  for (int half = 0; half < Body::kStageColumns / 64; ++half) {
    uint8_t* const to = shared.x[stage] + half * Body::kTokens * 128;
    if constexpr (Body::kBoxes) {
      for (int row = 0; row < tile.num_rows; row += Body::kBoxTokens) {
        TensorLoad2d(to + row * 128, &args.x_tiles, &shared.full[stage], column + half * 64,
                     tile.first_row + row);
      }
    } else if (!Body::kMayShare || args.shares == 1) {
      TensorLoad2d(to, &args.x_tiles, &shared.full[stage], column + half * 64, tile.first_row);
    } else {
      const int first = place.share * (Body::kTokens / args.shares);
      TensorLoad2dMulticast(to + first * 128, &args.x_tiles, &shared.full[stage],
                            column + half * 64, tile.first_row + first,
                            static_cast<uint16_t>(((1 << args.shares) - 1) << place.first_rank));
    }
  }
}

/// The rows of x that a warp's lanes copy where rows have numbers.
template <typename Body>
struct NumberedRows {
  static constexpr int kCount = (Body::kTokens + 31) / 32;
  int numbers[kCount];

  __device__ __forceinline__ NumberedRows(const MatMulArguments& args, const MatMulTile& tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = tile.first_row + min(i * 32 + lane, tile.num_rows - 1);
      numbers[i] = !args.numbered          ? 0
                   : args.tiles != nullptr ? __ldcg(args.pairs + row) / args.choices
                                           : args.x_row_numbers[row];
    }
  }
  __device__ __forceinline__ void Issue(const MatMulArguments& args, typename Body::Shared& shared,
                                        const MatMulTile& tile, int column, int stage) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < Body::kStageColumns / 64; ++half) {
      uint8_t* const to = shared.x[stage] + half * Body::kTokens * 128;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i * 32 + lane < tile.num_rows) {
          TensorLoad2d(to + (i * 32 + lane) * 128, &args.x_rows_map, &shared.full[stage],
                       column + half * 64, numbers[i]);
        }
      }
    }
  }
};

template <typename Body>
__device__ void LoadTiles(const MatMulArguments& args, typename Body::Shared& shared,
                          const ClusterPlace& place) {
  constexpr int kPerUnit = Body::kUnitColumns / Body::kStageColumns;
  const bool leads = threadIdx.x % 32 == 0;
  const bool routed = args.tiles != nullptr;
  const bool all = args.cluster_segments == 1;  // segments
  const int first_unit = all ? 0 : place.segment * args.segment_units;
  const int end_unit = all ? args.units : min(args.units, first_unit + args.segment_units);
  const int steps = (end_unit - first_unit) * kPerUnit;
  bool waited = false, begun = false;
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
    if (tile.num_rows <= 0) continue;
    const WeightCopies<Body> weights(args, tile, first_unit);
    const int first_column = tile.first_unit_row / args.group_unit_rows * args.group_columns;
    constexpr int kBox = Body::kBoxTokens;
    const int x_rows = args.numbered  ? tile.num_rows
                       : Body::kBoxes ? (tile.num_rows + kBox - 1) / kBox * kBox
                                      : Body::kTokens;
    const uint32_t bytes = weights.Bytes() + x_rows * Body::kStageColumns * 2;
    int ahead = 0;
    if (!begun) {
      begun = true;
      // Weights depend on no other kernel: as many as there is room for come before the wait.
      for (; ahead < min(steps, Body::kStages); ++ahead) {
        if (leads) weights.Issue(args, shared, ahead, ahead, bytes);
      }
      if (!waited) WaitForPriorGrid();
      // Not before the wait: so a kernel that reads the routing early finds it complete.
      if (routed && !waited) LaunchDependents();
      waited = true;
      if (args.shares > 1) ClusterWait();
    }
    const auto load = [&](auto issue_rows) {
      for (int step = 0; step < steps; ++step) {
        if (step >= ahead) {
          BarrierWait(&shared.empty[stage], phase ^ 1);
          if (leads) weights.Issue(args, shared, step, stage, bytes);
        }
        __syncwarp();
        issue_rows(first_column + first_unit * Body::kUnitColumns + step * Body::kStageColumns);
        if (++stage == Body::kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
    };
    if constexpr (!Body::kWide) {
      if (args.numbered) {
        const NumberedRows<Body> rows(args, tile);
        load([&](int column) { rows.Issue(args, shared, tile, column, stage); });
        continue;
      }
    }
    load([&](int column) {
      if (leads) IssueRows<Body>(args, shared, tile, place, column, stage);
    });
  }
  // A block without a tile must wait too: what follows takes its end for the prior grid's.
  if (!waited) WaitForPriorGrid();
  if (routed && !waited) LaunchDependents();
  if (args.shares > 1 && !begun) ClusterWait();
  // An arrival of another block must find this one still there. Where a cluster adds up segments it
  // meets after them, which does the same.
  if constexpr (Body::kMayShare && Body::kForm == SegmentForm::kOne) {
    for (int i = 0; i < Body::kStages && args.shares > 1; ++i) {
      BarrierWait(&shared.empty[stage], phase ^ 1);
      if (++stage == Body::kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
}

}  // namespace outrider::cuda
