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
// e4m3: codes in the order in which threads read them (see matmul_pack.cu), then a scale for every
// 8 rows.
inline constexpr int kF8CodeBytes = kWeightRows * kWeightColumns;
inline constexpr int kF8UnitBytes = kF8CodeBytes + kWeightRows / 8 * 4;

constexpr int UnitBytes(WeightFormat format) {
  return format == WeightFormat::kBf16 ? kBf16UnitBytes : kF8UnitBytes;
}

/// Rows of results that a warpgroup puts into shared memory at a time, and the floats between them.
inline constexpr int kStagedTokens = 32;
inline constexpr int kStagedStride = kWeightRows + 4;

/// A body of the kernel. kSegmentsInside: a block adds up all segments itself; else a cluster of as
/// many blocks as there are segments does. Which body runs changes no bit.
template <WeightFormat kFormat_, int kWarpgroups_, int kTokens_, int kStageColumns_, int kStages_,
          int kBlocksPerSm_, bool kSegmentsInside_>
struct MatMulBody {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kWarpgroups = kWarpgroups_;      // each has 64 rows of the weight
  static constexpr int kTokens = kTokens_;              // rows of x, on wgmma's N
  static constexpr int kStageColumns = kStageColumns_;  // 64 or 128
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kSegmentsInside = kSegmentsInside_;

  static constexpr int kThreads = kWarpgroups * 128 + 32;  // the last warp loads
  static constexpr int kXBytes = kTokens * kStageColumns * 2;
  static constexpr int kWeightBytes =
      kFormat == WeightFormat::kBf16 ? kWeightRows * kStageColumns * 2 : kF8UnitBytes;
  static constexpr int kStaged = std::min(kTokens, kStagedTokens);

  struct Shared {
    alignas(1024) uint8_t x[kStages][kXBytes];
    uint8_t weights[kStages][kWarpgroups][kWeightBytes];
    alignas(16) float staged[kWarpgroups][kStaged][kStagedStride];
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static_assert(kFormat == WeightFormat::kBf16 || kStageColumns == kWeightColumns);
  static_assert((kSharedBytes + 1024) * kBlocksPerSm <= 233472);
};

struct MatMulArguments {
  // x [rows, k] as boxes of 64 columns by the body's tokens, and by one row.
  CUtensorMap x_tiles;
  CUtensorMap x_rows_map;
  const uint8_t* weights;
  int64_t expert_bytes;
  int rows;           // 0 with a routing: the tiles say
  int n;              // rows of the weight
  int units;          // of a row of units: ceil(k / 128)
  int segment_units;  // units of a segment
  int segments;
  int row_tiles;     // tiles over rows of x, without a routing
  int column_tiles;  // tiles over rows of the weight
  bool gate_up;
  bool accumulate;
  bool bf16_output;
  void* y;
  int64_t y_stride;
  const int32_t* x_row_numbers;
  // With a routing.
  const ExpertTile* tiles;
  const int32_t* num_tiles;
  const int32_t* pairs;
  int choices;
};

/// Which body runs. One warpgroup: 8, 16, 32, 64 or 128 tokens, and a segment of K per block of a
/// cluster. Two, for many rows: `WideTokens`, and all segments in a block.
struct MatMulShape {
  int tokens;      // rows of x per block
  int warpgroups;  // 64 rows of the weight each
};

/// Tokens of the body of two warpgroups. Sums of two kinds at a time need more registers each.
constexpr int WideTokens(WeightFormat format, int segments) {
  if (format == WeightFormat::kF8) return segments == 1 ? 128 : 64;
  return format == WeightFormat::kBf16 && segments == 1 ? 256 : 128;
}

/// Launches the body on `blocks` blocks, a multiple of the blocks per tile.
template <WeightFormat kFormat>
cudaError_t LaunchMatMul(const MatMulShape& shape, const MatMulArguments& args, int blocks,
                         cudaStream_t stream);

/// Blocks of the body that a multiprocessor holds.
template <WeightFormat kFormat>
int MatMulBlocksPerSm(const MatMulShape& shape);

/// Writes the packed weight; the arguments have been checked.
cudaError_t LaunchPackWeight(const WeightSource& source, const PackedWeight& weight,
                             cudaStream_t stream);

cudaError_t LaunchCombineExperts(const float* x, const float* weights, int rows, int choices, int n,
                                 float* y, int64_t y_stride, cudaStream_t stream);

}  // namespace outrider::cuda
