// Host side of the matrix products: tensor maps, launches.
#include "outrider/kernels/cuda/matmul/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/host/multiprocessors.h"
#include "outrider/kernels/cuda/matmul/matmul_checks.h"
#include "outrider/kernels/cuda/matmul/matmul_shape.h"

namespace outrider::cuda {

namespace {

constexpr int kMaxRows = 1 << 20;

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

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
  // One weight: its units alone, as its scales may be elsewhere and other memory behind them.
  const size_t bytes =
      experts == 1 ? PackedUnitBytes(w.format, w.n, w.k) : PackedWeightBytes(w.format, w.n, w.k);
  constexpr int kColumns = kCopyRowBytes / 2;
  args.expert_copy_rows = static_cast<int64_t>(bytes) / kCopyRowBytes;
  args.weights = EncodeMap(w.data, kColumns, args.expert_copy_rows * experts, kColumns,
                           box_bytes / kCopyRowBytes, CU_TENSOR_MAP_SWIZZLE_NONE);
  args.n = w.n;
  args.units = Ceil(w.k, UnitColumns(w.format));
  args.group_unit_rows = Ceil(w.n, kWeightRows);
  args.group_columns = 0;
  args.scales = static_cast<const uint8_t*>(ScalesOf(w));
  args.expert_bytes = static_cast<int64_t>(bytes);
  args.gate_up = w.gate_up;
}

cudaError_t Launch(WeightFormat format, const MatMulShape& shape, const MatMulArguments& args,
                   const MatMulLaunch& launch, cudaStream_t stream) {
  switch (format) {
    case WeightFormat::kF8:
      return LaunchMatMul<WeightFormat::kF8>(shape, args, launch, stream);
    case WeightFormat::kF8PowerOfTwo:
      return LaunchMatMul<WeightFormat::kF8PowerOfTwo>(shape, args, launch, stream);
    case WeightFormat::kF8Rows:
      return LaunchMatMul<WeightFormat::kF8Rows>(shape, args, launch, stream);
    case WeightFormat::kInt4:
      return LaunchMatMul<WeightFormat::kInt4>(shape, args, launch, stream);
    case WeightFormat::kFp4:
      return LaunchMatMul<WeightFormat::kFp4>(shape, args, launch, stream);
    case WeightFormat::kNvfp4:
      return LaunchMatMul<WeightFormat::kNvfp4>(shape, args, launch, stream);
    default:
      return LaunchMatMul<WeightFormat::kBf16>(shape, args, launch, stream);
  }
}

/// Whether `blocks` blocks, `together` of them in a cluster, go better two per multiprocessor than
/// as the hardware places them. Larger clusters may not find room then.
bool TwoPerSm(int64_t blocks, int together) {
  return together <= 2 && blocks > NumMultiprocessors() && blocks <= 2 * NumMultiprocessors();
}

}  // namespace

size_t PackedUnitBytes(WeightFormat format, int n, int k) {
  return static_cast<size_t>(Ceil(n, kWeightRows)) *
         static_cast<size_t>(Ceil(k, UnitColumns(format))) * UnitBytes(format);
}

size_t PackedScaleBytes(WeightFormat format, int n, int k) {
  if (HasRowScales(format)) return static_cast<size_t>(Ceil(n, kWeightRows)) * kRowScaleBytes;
  if (!HasBlockScales(format)) return 0;
  return PackedUnitBytes(format, n, k) / UnitBytes(format) * kScaleBytes;
}

size_t PackedWeightBytes(WeightFormat format, int n, int k) {
  const size_t scales = PackedScaleBytes(format, n, k);
  return PackedUnitBytes(format, n, k) +
         (scales + kCopyRowBytes - 1) / kCopyRowBytes * kCopyRowBytes;
}

void PackWeight(const UnpackedWeight& source, const PackedWeight& weight, cudaStream_t stream) {
  CheckWeight("packing", weight);
  const bool grouped = IsFourBits(weight.format);
  const bool scaled = HasBlockScales(weight.format) ||
                      (HasRowScales(weight.format) && weight.format != WeightFormat::kFp4);
  if (source.w == nullptr || weight.gate_up != (source.up != nullptr) ||
      scaled != (source.scales != nullptr) ||
      (scaled && weight.gate_up) != (source.up_scales != nullptr) ||
      grouped != (source.group_scales != nullptr) ||
      (grouped && weight.gate_up) != (source.up_group_scales != nullptr)) {
    throw InvalidArgument(
        "packing: a pointer to each matrix of the weight and to the scales of each that its format "
        "has must be given, and no other");
  }
  constexpr int kMostRows = 65535 * kWeightRows;
  if (weight.n > kMostRows) {
    throw InvalidArgument("packing: a weight of {} rows: at most {} are possible", weight.n,
                          kMostRows);
  }
  CheckCuda(LaunchPackWeight(source, weight, stream), "packing a weight");
}

bool FitsGroups(const PackedWeight& w, int groups, int rows) {
  if (groups < 1 || w.gate_up || w.n % groups != 0 || w.k % UnitColumns(w.format) != 0) {
    return false;
  }
  const MatMulShape shape = ChooseShape(w, rows, /*numbered=*/false);
  const MatMulBodyFacts facts = Facts(w.format, shape, SegmentsOf(w).count > 1);
  return w.n / groups % (kWeightRows * facts.warpgroups * shape.shares) == 0;
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
  const bool groups_fit =
      params.groups == 1 || (params.shape == nullptr && FitsGroups(w, params.groups, params.rows));
  if (params.groups < 1 || !groups_fit || (params.groups > 1 && params.x_rows != nullptr)) {
    throw InvalidArgument(
        "{}: {} groups of a weight of {} x {}: a group must have whole blocks of rows and units of "
        "columns, without row numbers and a shape that is asked for",
        kWhat, params.groups, w.n, w.k);
  }
  const int x_columns = params.groups * w.k;
  CheckRows(kWhat, "x", params.x, params.x_stride, x_columns);
  if (params.num_destinations == 0) {
    CheckRows(kWhat, "y", params.y, params.y_stride, columns);
  } else {
    CheckDestinations(kWhat, params);
  }
  if (params.x_rows != nullptr && params.x_size <= 0) {
    throw InvalidArgument("{}: row numbers into an x of {} rows: x_size must be positive", kWhat,
                          params.x_size);
  }
  if (params.accumulate && (params.y_type != OutputType::kF32 || w.gate_up)) {
    throw InvalidArgument("{}: only a float32 y without gate and up can be accumulated", kWhat);
  }
  const MatMulSegments segments = SegmentsOf(w);
  const bool numbered = params.x_rows != nullptr;
  if (params.shape != nullptr) CheckShape(kWhat, *params.shape, w, segments.count, numbered);
  const MatMulShape shape =
      params.shape != nullptr ? *params.shape : ChooseShape(w, params.rows, numbered);
  const MatMulBodyFacts facts = Facts(w.format, shape, segments.count > 1);
  MatMulArguments args = {};
  const int x_size = numbered ? params.x_size : params.rows;
  args.x_tiles =
      EncodeRows(params.x, params.x_stride, x_size, x_columns, facts.box_tokens / shape.shares);
  args.x_rows_map = EncodeRows(params.x, params.x_stride, x_size, x_columns, 1);
  SetWeights(args, w, 1, facts.weight_bytes);
  if (params.groups > 1) {
    args.group_unit_rows = w.n / params.groups / kWeightRows;
    args.group_columns = w.k;
  }
  args.rows = params.rows;
  args.tile_tokens = shape.tokens;
  args.shares = shape.shares;
  args.numbered = numbered;
  args.segment_units = segments.length / UnitColumns(w.format);
  args.row_tiles = Ceil(params.rows, shape.tokens);
  args.column_tiles = Ceil(w.n, kWeightRows * facts.warpgroups * shape.shares);
  args.limits[0] = params.limits;
  args.first_shared = 1;
  args.accumulate = params.accumulate;
  args.bf16_output = params.y_type == OutputType::kBf16 && params.num_destinations == 0;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.num_destinations = params.num_destinations;
  std::copy_n(params.destinations, params.num_destinations, args.destinations);
  args.x_row_numbers = params.x_rows;
  args.weights_once = args.row_tiles == 1;
  const int tiles = args.row_tiles * args.column_tiles;
  args.cluster_segments = shape.all_segments ? 1 : segments.count;
  const int tile_blocks = shape.shares * args.cluster_segments;
  // A cluster that adds up segments has one tile. Blocks of one warpgroup start anew for each tile:
  // the hardware then gives each to who is free. Others stay and load the next tile beside the end
  // of the one before.
  const bool stay = facts.warpgroups > 1 && args.cluster_segments == 1;
  const int at_once = NumMultiprocessors() * facts.blocks_per_sm / tile_blocks;
  const int blocks = (stay ? std::min(tiles, at_once) : tiles) * tile_blocks;
  CheckCuda(Launch(w.format, shape, args, {blocks, TwoPerSm(blocks, tile_blocks)}, stream), kWhat);
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
  if (params.tile_rows < 8 || params.tile_rows > 256 ||
      !std::has_single_bit(static_cast<unsigned>(params.tile_rows))) {
    throw InvalidArgument("{}: tiles of {} rows: 8, 16, 32, 64, 128 or 256 are possible", kWhat,
                          params.tile_rows);
  }
  const ExpertRouting& routing = params.routing;
  if (routing.tiles == nullptr || routing.num_tiles == nullptr || routing.pairs == nullptr) {
    throw InvalidArgument("{}: the routing must have tiles, their number and pairs", kWhat);
  }
  const int pairs = params.max_rows * params.choices;
  const bool gathered = w.gate_up && params.tile_rows > kMostNumberedTokens;
  const void* x = params.x;
  int64_t x_stride = params.x_stride;
  if (gathered) {
    CheckRows(kWhat, "room for the rows of pairs (tiles of more than 16 rows need it)",
              params.gathered, w.k, w.k);
    if (routing.offsets == nullptr || routing.places == nullptr) {
      throw InvalidArgument("{}: the routing must have offsets and places to gather rows", kWhat);
    }
    const GatherPairs copy = {.x = x,
                              .x_stride = x_stride,
                              .k = w.k,
                              .places = routing.places,
                              .num_pairs = routing.offsets + params.experts,
                              .choices = params.choices,
                              .max_rows = params.max_rows,
                              .to = params.gathered,
                              .to_stride = w.k};
    if (!params.is_gathered) CheckCuda(LaunchGatherPairs(copy, stream), "gathering rows of pairs");
    x = params.gathered;
    x_stride = w.k;
  }
  const bool numbered = w.gate_up && !gathered;
  if (params.shape != nullptr) CheckShape(kWhat, *params.shape, w, 1, numbered);
  const MatMulShape shape = params.shape != nullptr ? *params.shape
                                                    : ChooseExpertShape(w.format, params.tile_rows,
                                                                        pairs / params.experts);
  const MatMulBodyFacts facts = Facts(w.format, shape, false);
  const int x_size = numbered ? params.max_rows : pairs;
  MatMulArguments args = {};
  args.x_tiles = EncodeRows(x, x_stride, x_size, w.k, facts.box_tokens);
  args.x_rows_map = EncodeRows(x, x_stride, x_size, w.k, 1);
  args.shares = 1;
  args.numbered = numbered;
  SetWeights(args, w, params.experts, facts.weight_bytes);
  args.segment_units = args.units;
  args.cluster_segments = 1;
  args.column_tiles = Ceil(w.n, kWeightRows * facts.warpgroups);
  args.limits[0] = params.limits;
  args.limits[1] = params.shared_limits;
  args.first_shared = params.experts - params.shared;
  args.bf16_output = params.y_type == OutputType::kBf16;
  args.y = params.y;
  args.y_stride = params.y_stride;
  // The copy of rows waits for the routing before it lets the products start.
  args.routing_settled = params.routing_settled || (gathered && !params.is_gathered);
  args.tiles = routing.tiles;
  args.parts = Ceil(params.tile_rows, shape.tokens);
  args.num_tiles = routing.num_tiles;
  args.pairs = routing.pairs;
  args.choices = params.choices;
  args.weights_once =
      params.max_rows <= params.tile_rows || params.tile_rows <= kMostNumberedTokens;
  const int64_t most =
      MaxExpertTiles(params.max_rows, params.choices, params.experts, params.tile_rows) *
      args.parts * args.column_tiles;
  const int64_t at_once = static_cast<int64_t>(NumMultiprocessors()) * facts.blocks_per_sm;
  const int blocks = static_cast<int>(std::min(most, at_once));
  CheckCuda(Launch(w.format, shape, args, {blocks, TwoPerSm(blocks, 1)}, stream), kWhat);
}

}  // namespace outrider::cuda
