// Host side of the matrix products: checks, tensor maps, and which body runs.
#include "outrider/kernels/cuda/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {

namespace {

constexpr int kMaxRows = 1 << 20;
constexpr int kMaxSegments = 8;  // the largest cluster that every Hopper GPU takes

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw Error(ErrorCode::kUnavailable, fmt::format("{}: {}", what, cudaGetErrorString(error)));
  }
}

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

/// x [rows, k] in boxes of 64 columns by `box_rows`, swizzled; what is outside reads as zero.
CUtensorMap EncodeRows(const void* x, int64_t stride, int rows, int k, int box_rows) {
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
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(x), sizes, strides, box,
             element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OUTRIDER_CHECK(result == CUDA_SUCCESS, "tensor map of {} x {}, stride {}: error {}", rows, k,
                 stride, static_cast<int>(result));
  return map;
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

int BlocksPerSm(WeightFormat format, const MatMulShape& shape) {
  switch (format) {
    case WeightFormat::kF8:
      return MatMulBlocksPerSm<WeightFormat::kF8>(shape);
    case WeightFormat::kF8PowerOfTwo:
      return MatMulBlocksPerSm<WeightFormat::kF8PowerOfTwo>(shape);
    default:
      return MatMulBlocksPerSm<WeightFormat::kBf16>(shape);
  }
}

int NarrowTokens(int rows) {
  int tokens = 8;
  while (tokens < rows && tokens < 128) tokens *= 2;
  return tokens;
}

void CheckWeight(const char* what, const PackedWeight& w) {
  if (w.n <= 0 || w.k <= 0 || w.data == nullptr || !Aligned(w.data)) {
    throw InvalidArgument(
        "{}: a weight of {} x {} at {}: sizes must be positive and its data 16-byte aligned", what,
        w.n, w.k, w.data);
  }
  if (w.gate_up && w.n % 16 != 0) {
    throw InvalidArgument("{}: gate and up of {} rows together: each needs a multiple of 8 rows",
                          what, w.n);
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

MatMulShape ShapeOf(const MatMulParams& params, int segments) {
  const MatMulShape wide = {.tokens = WideTokens(params.w.format, segments), .warpgroups = 2};
  if (params.tile_rows != 0) {
    return params.tile_rows == 256 ? wide
                                   : MatMulShape{.tokens = params.tile_rows, .warpgroups = 1};
  }
  const MatMulShape narrow = {.tokens = NarrowTokens(params.rows), .warpgroups = 1};
  // Several tiles over rows: narrow ones as long as all of them run at once.
  const int blocks = Ceil(params.rows, narrow.tokens) * Ceil(params.w.n, kWeightRows) * segments;
  return params.rows <= 128 || blocks <= 2 * NumMultiprocessors() ? narrow : wide;
}

}  // namespace

size_t PackedWeightBytes(WeightFormat format, int n, int k) {
  return static_cast<size_t>(Ceil(n, kWeightRows)) * static_cast<size_t>(Ceil(k, kWeightColumns)) *
         UnitBytes(format);
}

void PackWeight(const WeightSource& source, const PackedWeight& weight, cudaStream_t stream) {
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
  if (params.tile_rows != 0 && params.tile_rows != 256 &&
      (params.tile_rows > 128 || NarrowTokens(params.tile_rows) != params.tile_rows)) {
    throw InvalidArgument("{}: tiles of {} rows: 8, 16, 32, 64, 128, 256 or 0 are possible", kWhat,
                          params.tile_rows);
  }
  const MatMulSegments segments = SegmentsOf(w);
  const MatMulShape shape = ShapeOf(params, segments.count);
  MatMulArguments args = {};
  const int x_size = params.x_rows != nullptr ? params.x_size : params.rows;
  args.x_tiles = EncodeRows(params.x, params.x_stride, x_size, w.k, shape.tokens);
  args.x_rows_map = EncodeRows(params.x, params.x_stride, x_size, w.k, 1);
  args.weights = static_cast<const uint8_t*>(w.data);
  args.rows = params.rows;
  args.n = w.n;
  args.units = Ceil(w.k, kWeightColumns);
  args.segment_units = segments.length / kWeightColumns;
  args.segments = segments.count;
  args.row_tiles = Ceil(params.rows, shape.tokens);
  args.column_tiles = Ceil(w.n, kWeightRows * shape.warpgroups);
  args.gate_up = w.gate_up;
  args.accumulate = params.accumulate;
  args.bf16_output = params.y_type == OutputType::kBf16;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.x_row_numbers = params.x_rows;
  const int tiles = args.row_tiles * args.column_tiles;
  const int blocks = shape.warpgroups == 2
                         ? std::min(tiles, NumMultiprocessors() * BlocksPerSm(w.format, shape))
                         : tiles * segments.count;
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
  CheckWeight(kWhat, w);
  const int columns = w.gate_up ? w.n / 2 : w.n;
  if (params.choices <= 0 || params.experts < params.choices || params.max_rows < 0 ||
      params.max_rows > kMaxRows / params.choices) {
    throw InvalidArgument(
        "{}: {} rows with {} choices of {} experts: rows must be 0 to {}, choices 1 to the number "
        "of experts",
        kWhat, params.max_rows, params.choices, params.experts,
        kMaxRows / std::max(params.choices, 1));
  }
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
  const MatMulShape shape = {.tokens = params.tile_rows, .warpgroups = 1};
  const int pairs = params.max_rows * params.choices;
  const int x_size = w.gate_up ? params.max_rows : pairs;
  MatMulArguments args = {};
  args.x_tiles = EncodeRows(params.x, params.x_stride, x_size, w.k, shape.tokens);
  args.x_rows_map = EncodeRows(params.x, params.x_stride, x_size, w.k, 1);
  args.weights = static_cast<const uint8_t*>(w.data);
  args.expert_bytes = static_cast<int64_t>(PackedWeightBytes(w.format, w.n, w.k));
  args.n = w.n;
  args.units = Ceil(w.k, kWeightColumns);
  args.segment_units = args.units;
  args.segments = 1;
  args.column_tiles = Ceil(w.n, kWeightRows * shape.warpgroups);
  args.gate_up = w.gate_up;
  args.bf16_output = params.y_type == OutputType::kBf16;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.tiles = routing.tiles;
  args.num_tiles = routing.num_tiles;
  args.pairs = routing.pairs;
  args.choices = params.choices;
  const int64_t most =
      MaxExpertTiles(params.max_rows, params.choices, params.experts, params.tile_rows) *
      args.column_tiles;
  const int blocks = static_cast<int>(
      std::min<int64_t>(most, NumMultiprocessors() * BlocksPerSm(w.format, shape)));
  CheckCuda(Launch(w.format, shape, args, blocks, stream), kWhat);
}

void CombineExperts(const float* x, const float* weights, int rows, int choices, int n, float* y,
                    int64_t y_stride, cudaStream_t stream) {
  constexpr const char* kWhat = "sum over experts";
  if (rows < 0 || rows > kMaxRows || choices <= 0 || n <= 0 || n % 4 != 0 || n > 1 << 20) {
    throw InvalidArgument(
        "{}: {} rows, {} choices, {} columns: rows must be 0 to {}, choices positive and columns a "
        "multiple of 4",
        kWhat, rows, choices, n, kMaxRows);
  }
  if (rows == 0) return;
  if (x == nullptr || !Aligned(x) || weights == nullptr || y == nullptr || !Aligned(y) ||
      y_stride < n || y_stride % 4 != 0) {
    throw InvalidArgument(
        "{}: x at {}, weights at {}, y at {} with a stride of {}: x and y must be 16-byte aligned, "
        "and the stride a multiple of 4 that is at least {}",
        kWhat, static_cast<const void*>(x), static_cast<const void*>(weights),
        static_cast<void*>(y), y_stride, n);
  }
  CheckCuda(LaunchCombineExperts(x, weights, rows, choices, n, y, y_stride, stream), kWhat);
}

}  // namespace outrider::cuda
