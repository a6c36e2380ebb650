// Sizes, arguments and launches that host and device of the matrix products share.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/matmul/matmul_4bit_layout.h"

namespace outrider::cuda {

inline constexpr int kWeightRows = 64;  // of a unit: a wgmma's M
/// Columns of a unit.
constexpr int UnitColumns(WeightFormat format) {
  return IsFourBits(format) ? kFourBitUnitColumns : 128;
}
// bf16: two halves of 64 columns, each 64 rows of 128 bytes with the 128-byte swizzle of wgmma.
inline constexpr int kBf16UnitBytes = kWeightRows * 128 * 2;
// e4m3: words of four codes in the order in which threads read them (see matmul_pack.cu). Behind
// the last unit of the weight each unit's scales, one for every 8 rows.
inline constexpr int kF8UnitBytes = kWeightRows * 128;
inline constexpr int kScaleBytes = kWeightRows / 8 * 4;
/// Half a word: an e4m3 code each of two rows. The first one's bits stand where a bf16 has its sign
/// and the seven bits around the end of its exponent; the other's take what that leaves, and are
/// there after a shift of four bits each way.
constexpr uint32_t F8Half(uint32_t first, uint32_t other) {
  return (first & 0x80) << 8 | (first & 0x7F) << 4 | (other & 0x80) << 4 | (other & 0x70) << 8 |
         (other & 0x0F);
}
// Scales of rows, behind the last unit: of each row of units.
inline constexpr int kRowScaleBytes = kWeightRows * 4;

constexpr int UnitBytes(WeightFormat format) {
  return IsFourBits(format)              ? FourBitUnitBytes(format)
         : format == WeightFormat::kBf16 ? kBf16UnitBytes
                                         : kF8UnitBytes;
}

/// Packed weights are copied as rows of this size; the bytes of a weight are a multiple of it.
inline constexpr int kCopyRowBytes = 128;

/// Larger tiles of experts' rows are not copied row by row: they are brought together first.
inline constexpr int kMostNumberedTokens = 16;

/// Rows of x of a copy, in wide bodies, and in those of 32 and 64 rows with e2m1 weights.
inline constexpr int kBoxRows = 64;
inline constexpr int kSmallBoxRows = 16;

/// What a warpgroup puts into shared memory of its results at a time.
inline constexpr int kResultBytes = 8192;
/// A row of a warpgroup's sums in shared memory: a float for each of its 64 rows of the weight.
inline constexpr int kSumsRowBytes = kWeightRows * 4;

/// How a block meets the segments of K.
enum class SegmentForm {
  kOne,      // K is one segment
  kCluster,  // the blocks of a cluster have one each, for one tile
  kAll,      // a block sums all of them, one after the other
};

/// A body of the kernel. Which one runs changes no bit. A tile has up to kTokens rows of x; one of
/// more than 128 is wide: its rows of x come in boxes of 64, as many as it has rows for, and its
/// products are as wide. With e2m1 weights smaller bodies have boxes too: experts' tiles are
/// mostly half empty, and 32 rows of x are more bytes than the codes that they meet.
template <WeightFormat kFormat_, int kWarpgroups_, int kTokens_, int kStageColumns_, int kStages_,
          int kBlocksPerSm_, SegmentForm kForm_>
struct MatMulBody {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kWarpgroups = kWarpgroups_;      // each has 64 rows of the weight
  static constexpr int kTokens = kTokens_;              // rows of x, on wgmma's N
  static constexpr int kStageColumns = kStageColumns_;  // 64 or 128; with 4 bits 256
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr SegmentForm kForm = kForm_;
  static constexpr bool kWide = kTokens > 128;
  static constexpr bool kMayShare =  // rows of x
      kFormat == WeightFormat::kBf16 && kWarpgroups == 1 && kTokens <= 64;
  static constexpr bool kSmallBoxes =
      IsE2m1(kFormat) && kForm == SegmentForm::kOne && (kTokens == 32 || kTokens == 64);
  static constexpr bool kBoxes = kWide || kSmallBoxes;
  static constexpr int kBoxTokens = kWide ? kBoxRows : kSmallBoxes ? kSmallBoxRows : kTokens;
  static constexpr int kMostRowNumbers = std::min(kTokens, 128);  // at a time

  // The first of the last warps loads. A block that is alone on its multiprocessor has four of
  // them, whose registers the others take.
  static constexpr bool kGivesRegisters = kWarpgroups > 1 && kBlocksPerSm == 1;
  static constexpr bool kCodes = kFormat != WeightFormat::kBf16;  // are widened in registers
  static constexpr int kUnitColumns = UnitColumns(kFormat);
  static constexpr int kRegisters = kWarpgroups == 3 ? 160 : kCodes ? 232 : 208;
  static constexpr int kLoaderRegisters = kWarpgroups == 3 ? 32 : kCodes ? 40 : 88;
  static constexpr int kThreads = kWarpgroups * 128 + (kGivesRegisters ? 128 : 32);
  static constexpr int kXBytes = kTokens * kStageColumns * 2;
  static constexpr int kWeightBytes =
      kFormat == WeightFormat::kBf16 ? kWeightRows * kStageColumns * 2 : UnitBytes(kFormat);
  static constexpr int kStageScaleBytes = HasBlockScales(kFormat) ? kScaleBytes : 0;

  struct Shared {
    alignas(1024) uint8_t x[kStages][kXBytes];
    uint8_t weights[kStages][kWarpgroups][kWeightBytes];
    alignas(16) float scales[kStages][kWarpgroups][kWeightRows / 8];  // of blocks
    int32_t rows[kWarpgroups][kMostRowNumbers];                       // of y, with a routing
    alignas(8) uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  // What a cluster adds up stands where the stages were.
  static_assert(kForm != SegmentForm::kCluster ||
                kWarpgroups * kTokens * kSumsRowBytes <=
                    kStages * (kXBytes + kWarpgroups * kWeightBytes));
  // A warpgroup's results go through its part of a stage.
  static_assert(kWeightBytes >= kResultBytes);
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static_assert(kFormat == WeightFormat::kBf16 || kStageColumns == kUnitColumns);
  static_assert((kSharedBytes + 1024) * kBlocksPerSm <= 233472);
};

struct MatMulArguments {
  // x [rows, k] as boxes of 64 columns by the rows of a copy, and by one row.
  CUtensorMap x_tiles;
  CUtensorMap x_rows_map;
  // Packed weights [bytes / 128, 128 bytes], of all experts, in boxes of a body's kWeightBytes.
  CUtensorMap weights;
  // A block's weights are no other's, so L2 may let go of them first. It then keeps what a step
  // reads again, above all the kernels' code, which else comes from memory in every layer.
  bool weights_once;
  int64_t expert_copy_rows;  // rows of that map between experts
  const uint8_t* scales;     // of blocks or rows: of the first expert
  int64_t expert_bytes;
  int rows;         // 0 with a routing: the tiles say
  int tile_tokens;  // rows of x per tile, without a routing
  // Blocks that share rows of x: each loads a part of them for all. They have rows of the weight
  // that follow each other.
  int shares;
  int n;                 // rows of the weight
  int group_unit_rows;   // of rows that read the same columns of x, in units of 64 rows
  int group_columns;     // of x that each of these groups reads
  int units;             // of a row of units: ceil(k / UnitColumns)
  int segment_units;     // units of a segment
  int cluster_segments;  // blocks of a cluster with a segment each, or 1: a block has all
  int row_tiles;         // tiles over rows of x, without a routing
  int column_tiles;      // tiles over rows of the weight, each of all blocks that share x
  bool gate_up;
  GateUpLimits limits[2];  // of experts before first_shared, and from there on
  int first_shared;
  bool accumulate;
  bool bf16_output;
  void* y;
  int64_t y_stride;
  int num_destinations;  // in the place of y
  MatMulDestination destinations[kMaxDestinations];
  // Rows of x one by one: those with x_row_numbers, or of the pairs of a routing.
  bool numbered;
  const int32_t* x_row_numbers;
  // With a routing.
  bool routing_settled;  // it was complete when the kernel before let this one start
  const ExpertTile* tiles;
  int parts;  // tiles of the body that one of the list is cut into
  const int32_t* num_tiles;
  const int32_t* pairs;
  int choices;
};

/// Shared memory of which two blocks have room on a multiprocessor, and three have not.
inline constexpr size_t kTwoPerSmBytes = 233472 / 2 - 1024;

struct MatMulLaunch {
  int blocks;  // a multiple of the blocks per tile
  // No more than two blocks per multiprocessor: where that is room for all, the hardware would else
  // put three on some, which then take longest.
  bool two_per_sm;
};

template <WeightFormat kFormat>
cudaError_t LaunchMatMul(const MatMulShape& shape, const MatMulArguments& args,
                         const MatMulLaunch& launch, cudaStream_t stream);

struct MatMulBodyFacts {
  int warpgroups;     // each has 64 rows of the weight
  int blocks_per_sm;  // that a multiprocessor holds
  int weight_bytes;   // of a warpgroup's copy
  int box_tokens;     // rows of x of a copy, where blocks do not share them
};
/// `segments`: the weight has several.
template <WeightFormat kFormat>
MatMulBodyFacts FactsOf(const MatMulShape& shape, bool segments);

/// Writes the packed weight; the arguments have been checked.
cudaError_t LaunchPackWeight(const UnpackedWeight& source, const PackedWeight& weight,
                             cudaStream_t stream);

/// to[places[pair]] = x[pair / choices] for the first *num_pairs pairs; rows of k bf16.
struct GatherPairs {
  const void* x;
  int64_t x_stride;
  int k;
  const int32_t* places;     // by pair
  const int32_t* num_pairs;  // the true number, on the device
  int choices;
  int max_rows;
  void* to;
  int64_t to_stride;
};
cudaError_t LaunchGatherPairs(const GatherPairs& gather, cudaStream_t stream);

}  // namespace outrider::cuda
