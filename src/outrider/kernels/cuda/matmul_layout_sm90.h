// Sizes, arguments and launches that host and device of the matrix products share.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "outrider/kernels/cuda/matmul.h"

namespace outrider::cuda {

inline constexpr int kWeightRows = 64;      // of a unit: a wgmma's M
inline constexpr int kWeightColumns = 128;  // of a unit
// bf16: two halves of 64 columns, each 64 rows of 128 bytes with the 128-byte swizzle of wgmma.
inline constexpr int kBf16UnitBytes = kWeightRows * kWeightColumns * 2;
// e4m3: codes in the order in which threads read them (see matmul_pack.cu). Behind the last unit of
// the weight each unit's scales, one for every 8 rows.
inline constexpr int kF8UnitBytes = kWeightRows * kWeightColumns;
inline constexpr int kScaleBytes = kWeightRows / 8 * 4;

constexpr int UnitBytes(WeightFormat format) {
  return format == WeightFormat::kBf16 ? kBf16UnitBytes : kF8UnitBytes;
}

/// Packed weights are copied as rows of so many bytes; the bytes of a weight are a multiple.
inline constexpr int kCopyRowBytes = 128;

/// The floats between rows of results in shared memory.
inline constexpr int kStagedStride = kWeightRows + 4;

/// A body of the kernel. Which one runs changes no bit. kAllSegments: a block sums all segments,
/// one after the other; else one of them.
template <WeightFormat kFormat_, int kWarpgroups_, int kTokens_, int kStageColumns_, int kStages_,
          int kBlocksPerSm_, bool kAllSegments_ = false>
struct MatMulBody {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kWarpgroups = kWarpgroups_;      // each has 64 rows of the weight
  static constexpr int kTokens = kTokens_;              // rows of x, on wgmma's N
  static constexpr int kStageColumns = kStageColumns_;  // 64 or 128
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kAllSegments = kAllSegments_;

  // The first of the last warps loads. A block that is alone on its multiprocessor has four of
  // them, whose registers the others take.
  static constexpr bool kGivesRegisters = kWarpgroups > 1 && kBlocksPerSm == 1;
  static constexpr int kRegisters = kWarpgroups == 2 ? 232 : 152;
  static constexpr int kThreads = kWarpgroups * 128 + (kGivesRegisters ? 128 : 32);
  static constexpr int kXBytes = kTokens * kStageColumns * 2;
  static constexpr int kWeightBytes =
      kFormat == WeightFormat::kBf16 ? kWeightRows * kStageColumns * 2 : kF8UnitBytes;
  static constexpr int kStageScaleBytes = kFormat == WeightFormat::kBf16 ? 0 : kScaleBytes;
  // Rows of results that a warpgroup puts into shared memory at a time.
  static constexpr int kStaged = std::min(kTokens, kBlocksPerSm == 1 ? 32 : 16);

  struct Shared {
    alignas(1024) uint8_t x[kStages][kXBytes];
    uint8_t weights[kStages][kWarpgroups][kWeightBytes];
    alignas(16) float scales[kStages][kWarpgroups][kWeightRows / 8];  // e4m3
    alignas(16) float staged[kWarpgroups][kStaged][kStagedStride];
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  // What a cluster adds up stands where the stages were.
  static_assert(kAllSegments || kWarpgroups * kTokens * kStagedStride * 4 <=
                                    kStages * (kXBytes + kWarpgroups * kWeightBytes));
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static_assert(kFormat == WeightFormat::kBf16 || kStageColumns == kWeightColumns);
  static_assert((kSharedBytes + 1024) * kBlocksPerSm <= 233472);
};

struct MatMulArguments {
  // x [rows, k] as boxes of 64 columns by the rows that a block loads, and by one row.
  CUtensorMap x_tiles;
  CUtensorMap x_rows_map;
  // Packed weights [bytes / 128, 128 bytes], of all experts, in boxes of a body's kWeightBytes.
  CUtensorMap weights;
  int64_t expert_copy_rows;  // rows of that map between experts
  const uint8_t* scales;     // e4m3: of the first expert
  int64_t expert_bytes;
  int rows;  // 0 with a routing: the tiles say
  // Blocks that share rows of x: each loads a part of them for all. They have rows of the weight
  // that follow each other.
  int shares;
  int n;                 // rows of the weight
  int units;             // of a row of units: ceil(k / 128)
  int segment_units;     // units of a segment
  int cluster_segments;  // blocks of a cluster with a segment each, or 1
  int row_tiles;         // tiles over rows of x, without a routing
  int column_tiles;      // tiles over rows of the weight, each of all blocks that share x
  bool gate_up;
  bool accumulate;
  bool bf16_output;
  void* y;
  int64_t y_stride;
  // Rows of x one by one: those with x_row_numbers, or of the pairs of a routing.
  bool numbered;
  const int32_t* x_row_numbers;
  // With a routing.
  bool routing_settled;  // it was complete when the kernel before let this one start
  const ExpertTile* tiles;
  const int32_t* num_tiles;
  const int32_t* pairs;
  int choices;
};

/// Which body runs.
struct MatMulShape {
  int tokens;      // rows of x per block: 8, 16, 32, 64, 128; bf16: 256 too; or AllSegmentsTokens
  int shares = 1;  // MatMulArguments'
  bool all_segments = false;  // in a block; else those of a tile are a cluster
  // No more than two blocks per multiprocessor: where that is room for all, the hardware would else
  // put three on some, which then take longest.
  bool two_per_sm = false;
};

/// Rows of x of the body whose blocks have all segments.
constexpr int AllSegmentsTokens(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 192 : 128;
}

/// Shared memory of which two blocks have room on a multiprocessor, and three have not.
inline constexpr size_t kTwoPerSmBytes = 233472 / 2 - 1024;

/// Launches the body on `blocks` blocks, a multiple of the blocks per tile.
template <WeightFormat kFormat>
cudaError_t LaunchMatMul(const MatMulShape& shape, const MatMulArguments& args, int blocks,
                         cudaStream_t stream);

struct MatMulBodyFacts {
  int warpgroups;     // each has 64 rows of the weight
  int blocks_per_sm;  // that a multiprocessor holds
  int weight_bytes;   // of a warpgroup's copy
};
template <WeightFormat kFormat>
MatMulBodyFacts FactsOf(const MatMulShape& shape);

/// Writes the packed weight; the arguments have been checked.
cudaError_t LaunchPackWeight(const UnpackedWeight& source, const PackedWeight& weight,
                             cudaStream_t stream);

/// to[place] = x[pairs[place] / choices] for the first *places places; rows of k bf16.
cudaError_t LaunchGatherPairs(const void* x, int64_t x_stride, int k, const int32_t* pairs,
                              const int32_t* places, int choices, int most, void* to,
                              int64_t to_stride, cudaStream_t stream);

}  // namespace outrider::cuda
