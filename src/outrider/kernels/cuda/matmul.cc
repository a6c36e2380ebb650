// Host side of the matrix products: checks, tensor maps, and which body runs.
#include "outrider/kernels/cuda/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {

namespace {

constexpr int kMaxRows = 1 << 20;
constexpr int kMaxCluster = 8;  // the largest that every Hopper GPU takes
constexpr int kMaxSegments = kMaxCluster;
constexpr int kMaxNumberedTile = 16;  // of experts' rows: more are faster copied first

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

int NumMultiprocessors() {
  static const int count = [] {
    int device = 0;
    int value = 1;
    CheckCuda(cudaGetDevice(&device), "the current device");
    CheckCuda(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
              "number of multiprocessors");
    return value;
  }();
  return count;
}

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

/// A matrix [rows, columns] of bf16 in boxes of 64 columns by `box_rows`; what is outside reads as
/// zero. `stride` is in elements.
CUtensorMap EncodeMap(const void* data, int64_t stride, int64_t rows, int columns, int box_rows,
                      CUtensorMapSwizzle swizzle) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                               cudaEnableDefault, &found),
              "cuTensorMapEncodeTiled of the driver");
    if (found != cudaDriverEntryPointSuccess) {
      throw Error(ErrorCode::kUnavailable,
                  "the CUDA driver has no cuTensorMapEncodeTiled: a driver for CUDA 12 or later is "
                  "needed");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
             box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OUTRIDER_CHECK(result == CUDA_SUCCESS, "tensor map of {} x {}, stride {}: error {}", rows,
                 columns, stride, static_cast<int>(result));
  return map;
}

/// x [rows, k], swizzled as wgmma reads it.
CUtensorMap EncodeRows(const void* x, int64_t stride, int rows, int k, int box_rows) {
  return EncodeMap(x, stride, rows, k, box_rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

/// What a body reads of a packed weight, or of several one after the other.
void SetWeights(MatMulArguments& args, const PackedWeight& w, int experts, int box_bytes) {
  const size_t bytes = PackedWeightBytes(w.format, w.n, w.k);
  constexpr int kColumns = kCopyRowBytes / 2;
  args.expert_copy_rows = static_cast<int64_t>(bytes) / kCopyRowBytes;
  args.weights = EncodeMap(w.data, kColumns, args.expert_copy_rows * experts, kColumns,
                           box_bytes / kCopyRowBytes, CU_TENSOR_MAP_SWIZZLE_NONE);
  args.n = w.n;
  args.units = Ceil(w.k, kWeightColumns);
  const int64_t units = static_cast<int64_t>(Ceil(w.n, kWeightRows)) * args.units;
  args.scales = static_cast<const uint8_t*>(w.data) + units * UnitBytes(w.format);
  args.expert_bytes = static_cast<int64_t>(bytes);
  args.gate_up = w.gate_up;
}

cudaError_t Launch(WeightFormat format, const MatMulShape& shape, const MatMulArguments& args,
                   int blocks, cudaStream_t stream) {
  switch (format) {
    case WeightFormat::kF8:
      return LaunchMatMul<WeightFormat::kF8>(shape, args, blocks, stream);
    case WeightFormat::kF8PowerOfTwo:
      return LaunchMatMul<WeightFormat::kF8PowerOfTwo>(shape, args, blocks, stream);
    default:
      return LaunchMatMul<WeightFormat::kBf16>(shape, args, blocks, stream);
  }
}

MatMulBodyFacts Facts(WeightFormat format, const MatMulShape& shape) {
  switch (format) {
    case WeightFormat::kF8:
      return FactsOf<WeightFormat::kF8>(shape);
    case WeightFormat::kF8PowerOfTwo:
      return FactsOf<WeightFormat::kF8PowerOfTwo>(shape);
    default:
      return FactsOf<WeightFormat::kBf16>(shape);
  }
}

int NarrowTokens(int rows) {
  int tokens = 8;
  while (tokens < rows && tokens < 128) tokens *= 2;
  return tokens;
}

void CheckWeight(const char* what, const PackedWeight& w, int experts = 1) {
  if (w.n <= 0 || w.k <= 0 || w.data == nullptr || !Aligned(w.data)) {
    throw InvalidArgument(
        "{}: a weight of {} x {} at {}: sizes must be positive and its data 16-byte aligned", what,
        w.n, w.k, w.data);
  }
  if (w.gate_up && w.n % 16 != 0) {
    throw InvalidArgument("{}: gate and up of {} rows together: each needs a multiple of 8 rows",
                          what, w.n);
  }
  constexpr size_t kMostBytes = size_t{kCopyRowBytes} << 31;
  if (PackedWeightBytes(w.format, w.n, w.k) > kMostBytes / static_cast<size_t>(experts)) {
    throw InvalidArgument(
        "{}: {} weights of {} x {}: together they must not take more than {} bytes", what, experts,
        w.n, w.k, kMostBytes);
  }
  if (w.segments < 0 || w.segments > kMaxSegments) {
    throw InvalidArgument("{}: {} segments of K: 1 to {} are possible, or 0 for the usual number",
                          what, w.segments, kMaxSegments);
  }
}

void CheckRows(const char* what, const char* name, const void* data, int64_t stride, int columns) {
  if (data == nullptr || !Aligned(data) || stride < columns || stride % 8 != 0) {
    throw InvalidArgument(
        "{}: {} at {} with a stride of {} elements: it must be 16-byte aligned, and the stride a "
        "multiple of 8 that is at least {}",
        what, name, data, stride, columns);
  }
}

/// How many blocks share rows of x. It pays where all tiles of a product run at once, with rows
/// that are many, but not so many that products take longer than reading x.
int SharesOf(const MatMulParams& params, int tokens, int segments) {
  const bool pays = params.w.format == WeightFormat::kBf16 && (tokens == 32 || tokens == 64);
  if (!pays || params.x_rows != nullptr || segments > 1 || params.rows > tokens) return 1;
  return params.w.n >= 4 * kWeightRows ? 4 : 1;
}

/// Whether `blocks` blocks, `together` of them in a cluster, go better two per multiprocessor than
/// as the hardware places them. Larger clusters may not find room then.
bool TwoPerSm(int64_t blocks, int together) {
  return together <= 2 && blocks > NumMultiprocessors() && blocks <= 2 * NumMultiprocessors();
}

/// Rows of x times rows of the weight that a multiprocessor goes through, one tile after another:
/// what a product takes that has too many rows to be bound by the weight's bytes.
int64_t LongestWork(const MatMulParams& params, int tokens, int segments) {
  const int weight_rows = kWeightRows * Facts(params.w.format, {.tokens = tokens}).warpgroups;
  const int64_t blocks =
      int64_t{Ceil(params.rows, tokens)} * Ceil(params.w.n, weight_rows) * segments;
  const int64_t rounds = (blocks + NumMultiprocessors() - 1) / NumMultiprocessors();
  return rounds * tokens * weight_rows;
}

constexpr int kAllSegmentsTile = 192;    // what MatMulParams::tile_rows calls such a tile
constexpr int kMostWideSegments = 2;     // of a cluster of blocks with 256 rows,
constexpr int kMostClusteredRows = 512;  // with so many rows

/// Rows of x per block for 129 to 256 rows. (Clusters of more than two such large blocks find room
/// on too few multiprocessors at once.)
int WideTokens(const MatMulParams& params, int segments) {
  if (params.w.format != WeightFormat::kBf16 || segments > kMostWideSegments) {
    return 128;
  }

  return LongestWork(params, 128, segments) < LongestWork(params, 256, segments) ? 128 : 256;
}

MatMulShape ShapeOf(const MatMulParams& params, int segments) {
  const WeightFormat format = params.w.format;
  MatMulShape shape = {.tokens = params.tile_rows};
  if (params.tile_rows == 0) {
    shape.tokens = params.rows > 256   ? 256
                   : params.rows > 128 ? WideTokens(params, segments)
                                       : NarrowTokens(params.rows);
  }
  const bool clusters = format == WeightFormat::kBf16 && segments <= kMostWideSegments &&
                        params.rows <= kMostClusteredRows;
  if (params.tile_rows == kAllSegmentsTile || (shape.tokens == 256 && segments > 1 && !clusters)) {
    // A cluster's segments are faster than a block with all of them as long as few tiles follow
    // each other.
    shape.all_segments = true;
    shape.tokens = AllSegmentsTokens(format);
  }
  if (format != WeightFormat::kBf16) shape.tokens = std::min(shape.tokens, 128);
  shape.shares = params.shares != 0 ? params.shares : SharesOf(params, shape.tokens, segments);
  return shape;
}

}  // namespace

size_t PackedWeightBytes(WeightFormat format, int n, int k) {
  const size_t units =
      static_cast<size_t>(Ceil(n, kWeightRows)) * static_cast<size_t>(Ceil(k, kWeightColumns));
  const size_t scales = format == WeightFormat::kBf16 ? 0 : units * kScaleBytes;
  return units * UnitBytes(format) + (scales + kCopyRowBytes - 1) / kCopyRowBytes * kCopyRowBytes;
}

void PackWeight(const UnpackedWeight& source, const PackedWeight& weight, cudaStream_t stream) {
  CheckWeight("packing", weight);
  const bool scaled = weight.format != WeightFormat::kBf16;
  if (source.w == nullptr || weight.gate_up != (source.up != nullptr) ||
      scaled != (source.scales != nullptr) ||
      (scaled && weight.gate_up) != (source.up_scales != nullptr)) {
    throw InvalidArgument(
        "packing: a pointer to each matrix of the weight, and with e4m3 to the scales of each, "
        "must "
        "be given, and no other");
  }
  constexpr int kMostRows = 65535 * kWeightRows;
  if (weight.n > kMostRows) {
    throw InvalidArgument("packing: a weight of {} rows: at most {} are possible", weight.n,
                          kMostRows);
  }
  CheckCuda(LaunchPackWeight(source, weight, stream), "packing a weight");
}

MatMulSegments SegmentsOf(const PackedWeight& weight) {
  const int units = Ceil(weight.k, kWeightColumns);
  int count = weight.segments;
  if (count == 0) {
    // With one segment a block has 64 rows of the weight. About two blocks per multiprocessor of
    // the largest Hopper GPU keep enough loads under way; less than 256 columns each do not pay.
    count = std::clamp(264 / Ceil(weight.n, kWeightRows), 1, kMaxSegments);
    count = std::clamp(units / 2, 1, count);
  }
  const int length = Ceil(units, count);
  return {.count = Ceil(units, length), .length = length * kWeightColumns};
}

void MatMul(const MatMulParams& params, cudaStream_t stream) {
  constexpr const char* kWhat = "matrix product";
  const PackedWeight& w = params.w;
  CheckWeight(kWhat, w);
  const int columns = w.gate_up ? w.n / 2 : w.n;
  if (params.rows < 0 || params.rows > kMaxRows) {
    throw InvalidArgument("{}: {} rows: 0 to {} are possible", kWhat, params.rows, kMaxRows);
  }
  if (params.rows == 0) return;
  CheckRows(kWhat, "x", params.x, params.x_stride, w.k);
  CheckRows(kWhat, "y", params.y, params.y_stride, columns);
  if (params.x_rows != nullptr && params.x_size <= 0) {
    throw InvalidArgument("{}: row numbers into an x of {} rows: x_size must be positive", kWhat,
                          params.x_size);
  }
  if (params.accumulate && (params.y_type != OutputType::kF32 || w.gate_up)) {
    throw InvalidArgument("{}: only a float32 y without gate and up can be accumulated", kWhat);
  }
  if (params.tile_rows != 0 && params.tile_rows != 256 && params.tile_rows != kAllSegmentsTile &&
      (params.tile_rows > 128 || NarrowTokens(params.tile_rows) != params.tile_rows)) {
    throw InvalidArgument("{}: tiles of {} rows: 8, 16, 32, 64, 128, 192, 256 or 0 are possible",
                          kWhat, params.tile_rows);
  }
  const MatMulSegments segments = SegmentsOf(w);
  if (params.shares != 0 && (!std::has_single_bit(static_cast<unsigned>(params.shares)) ||
                             params.shares * segments.count > kMaxCluster ||
                             params.tile_rows < 8 * params.shares || params.x_rows != nullptr)) {
    throw InvalidArgument(
        "{}: x shared by {} blocks with {} segments, tiles of {} rows: 1, 2 or 4 with segments at "
        "most {}, tiles of 8 rows for each and no row numbers are possible",
        kWhat, params.shares, segments.count, params.tile_rows, kMaxCluster);
  }
  MatMulShape shape = ShapeOf(params, segments.count);
  MatMulArguments args = {};
  const int x_size = params.x_rows != nullptr ? params.x_size : params.rows;
  args.x_tiles = EncodeRows(params.x, params.x_stride, x_size, w.k, shape.tokens / shape.shares);
  args.x_rows_map = EncodeRows(params.x, params.x_stride, x_size, w.k, 1);
  const MatMulBodyFacts facts = Facts(w.format, shape);
  SetWeights(args, w, 1, facts.weight_bytes);
  args.rows = params.rows;
  args.shares = shape.shares;
  args.numbered = params.x_rows != nullptr;
  args.segment_units = segments.length / kWeightColumns;
  args.row_tiles = Ceil(params.rows, shape.tokens);
  args.column_tiles = Ceil(w.n, kWeightRows * facts.warpgroups * shape.shares);
  args.accumulate = params.accumulate;
  args.bf16_output = params.y_type == OutputType::kBf16;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.x_row_numbers = params.x_rows;
  const int tiles = args.row_tiles * args.column_tiles;
  args.cluster_segments = shape.all_segments ? 1 : segments.count;
  const int tile_blocks = shape.shares * args.cluster_segments;
  // A cluster that adds up segments has one tile. Blocks of one warpgroup start anew for each tile:
  // the hardware then gives each to who is free. Others stay and load the next tile beside the end
  // of the one before.
  const bool stay = facts.warpgroups > 1 && args.cluster_segments == 1;
  const int at_once = NumMultiprocessors() * facts.blocks_per_sm / tile_blocks;
  const int blocks = (stay ? std::min(tiles, at_once) : tiles) * tile_blocks;
  shape.two_per_sm = TwoPerSm(blocks, tile_blocks);
  CheckCuda(Launch(w.format, shape, args, blocks, stream), kWhat);
}

int ExpertTileRows(int max_rows, int choices, int experts) {
  // About the most rows that an expert has if the router spreads them evenly.
  const int mean = Ceil(max_rows * choices, std::max(experts, 1));
  return NarrowTokens(std::min(max_rows, mean + mean / 2));
}

void ExpertMatMul(const ExpertMatMulParams& params, cudaStream_t stream) {
  constexpr const char* kWhat = "expert products";
  const PackedWeight& w = params.w;
  const int columns = w.gate_up ? w.n / 2 : w.n;
  if (params.choices <= 0 || params.experts < params.choices || params.max_rows < 0 ||
      params.max_rows > kMaxRows / params.choices) {
    throw InvalidArgument(
        "{}: {} rows with {} choices of {} experts: rows must be 0 to {}, choices 1 to the number "
        "of experts",
        kWhat, params.max_rows, params.choices, params.experts,
        kMaxRows / std::max(params.choices, 1));
  }
  CheckWeight(kWhat, w, params.experts);
  if (params.max_rows == 0) return;
  CheckRows(kWhat, "x", params.x, params.x_stride, w.k);
  CheckRows(kWhat, "y", params.y, params.y_stride, columns);
  if (params.tile_rows < 8 || NarrowTokens(params.tile_rows) != params.tile_rows) {
    throw InvalidArgument("{}: tiles of {} rows: 8, 16, 32, 64 or 128 are possible", kWhat,
                          params.tile_rows);
  }
  const ExpertRouting& routing = params.routing;
  if (routing.tiles == nullptr || routing.num_tiles == nullptr || routing.pairs == nullptr) {
    throw InvalidArgument("{}: the routing must have tiles, their number and pairs", kWhat);
  }
  const int pairs = params.max_rows * params.choices;
  const bool gathered = w.gate_up && params.tile_rows > kMaxNumberedTile;
  const void* x = params.x;
  int64_t x_stride = params.x_stride;
  if (gathered) {
    CheckRows(kWhat, "room for the rows of pairs (tiles of more than 16 rows need it)",
              params.gathered, w.k, w.k);
    if (routing.offsets == nullptr) {
      throw InvalidArgument("{}: the routing must have offsets to gather rows", kWhat);
    }
    CheckCuda(LaunchGatherPairs(x, x_stride, w.k, routing.pairs, routing.offsets + params.experts,
                                params.choices, pairs, params.gathered, w.k, stream),
              "gathering the rows of pairs");
    x = params.gathered;
    x_stride = w.k;
  }
  const bool numbered = w.gate_up && !gathered;
  MatMulShape shape = {.tokens = params.tile_rows};
  const MatMulBodyFacts facts = Facts(w.format, shape);
  const int x_size = numbered ? params.max_rows : pairs;
  MatMulArguments args = {};
  args.x_tiles = EncodeRows(x, x_stride, x_size, w.k, shape.tokens);
  args.x_rows_map = EncodeRows(x, x_stride, x_size, w.k, 1);
  args.shares = shape.shares;
  args.numbered = numbered;
  SetWeights(args, w, params.experts, facts.weight_bytes);
  args.segment_units = args.units;
  args.cluster_segments = 1;
  args.column_tiles = Ceil(w.n, kWeightRows * facts.warpgroups);
  args.bf16_output = params.y_type == OutputType::kBf16;
  args.y = params.y;
  args.y_stride = params.y_stride;
  // The copy of rows waits for the routing before it lets the products start.
  args.routing_settled = params.routing_settled || gathered;
  args.tiles = routing.tiles;
  args.num_tiles = routing.num_tiles;
  args.pairs = routing.pairs;
  args.choices = params.choices;
  const int64_t most =
      MaxExpertTiles(params.max_rows, params.choices, params.experts, params.tile_rows) *
      args.column_tiles;
  const int64_t at_once = static_cast<int64_t>(NumMultiprocessors()) * facts.blocks_per_sm;
  const int blocks = static_cast<int>(std::min(most, at_once));
  shape.two_per_sm = TwoPerSm(blocks, 1);
  CheckCuda(Launch(w.format, shape, args, blocks, stream), kWhat);
}

}  // namespace outrider::cuda
