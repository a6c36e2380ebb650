// Matrix products y = x W^T on Hopper with bf16 activations, float32 sums and weights packed as
// bf16 or as codes of 8 or 4 bits with scales; the same with a matrix of its own for every expert.
//
// Row invariance: the bits of an output row depend on its x and the weight alone. K is cut into
// segments at places that the weight's shape fixes (`MatMulSegments`). A segment is one chain over
// slices of 16 columns; segments are added in order. How many rows a call has, their order, the
// tiles and how many blocks share the segments change no bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "outrider/kernels/cuda/moe/expert_routing.h"

namespace outrider::cuda {

enum class WeightFormat {
  kBf16,
  kF8,            // e4m3 codes; a scale per 128 columns and 8 rows (from blocks of 128x128)
  kF8PowerOfTwo,  // kF8 whose scales are all powers of two in [2^-64, 2^7]
  kF8Rows,        // e4m3 codes; a float32 scale per row
  kInt4,          // integers from -8 to 7; a bf16 scale per row and 32 columns
  kFp4,           // e2m1 codes; a power of two per row and 32 columns
  kNvfp4,         // e2m1 codes; an e4m3 scale per row and 16 columns, a float32 scale per row
};

constexpr bool IsFourBits(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kFp4 ||
         format == WeightFormat::kNvfp4;
}
constexpr bool IsE2m1(WeightFormat format) {
  return format == WeightFormat::kFp4 || format == WeightFormat::kNvfp4;
}
/// Scales of e4m3 codes stand for blocks of 128x128.
constexpr bool HasBlockScales(WeightFormat format) {
  return format == WeightFormat::kF8 || format == WeightFormat::kF8PowerOfTwo;
}
/// Packed rows have a float32 scale each (of kFp4 the largest power of two in the row).
constexpr bool HasRowScales(WeightFormat format) {
  return format == WeightFormat::kF8Rows || format == WeightFormat::kFp4 ||
         format == WeightFormat::kNvfp4;
}
/// Columns of a row that share a scale, of formats of 4 bits.
constexpr int GroupColumns(WeightFormat format) { return format == WeightFormat::kNvfp4 ? 16 : 32; }

/// How K is cut: segment i covers columns [i * length, min((i + 1) * length, k)).
struct MatMulSegments {
  int count = 1;   // 1 .. 8
  int length = 0;  // a multiple of 128, with codes of 4 bits of 256
};

/// A weight W [n, k] as the kernels read it: [ceil(n / 64)][ceil(k / c)] units of 64 rows and c
/// columns, 128 or (codes of 4 bits) 256, what is missing being zero; at most 2^31 rows of 128
/// bytes. `PackWeight` writes it.
struct PackedWeight {
  WeightFormat format = WeightFormat::kBf16;
  int n = 0;  // rows of W; with gate_up of gate and up together
  int k = 0;
  // Rows are those of two matrices, gate and up, by turns 8 of each: n is twice their rows.
  bool gate_up = false;
  const void* data = nullptr;  // 16-byte aligned, PackedWeightBytes
  // Scales of blocks or rows, of a dense product: PackedScaleBytes, 16-byte aligned; null: they
  // stand behind the units. So two weights can be one, units and scales side by side.
  const void* scales = nullptr;
  int segments = 0;  // of K; 0: SegmentsOf's. Another number rounds otherwise.
};

/// Bytes of a packed weight, a multiple of 128: units and, behind them, scales of blocks or rows.
size_t PackedWeightBytes(WeightFormat format, int n, int k);
/// Bytes of each alone. Units are a multiple of 128 bytes and hold scales of groups; scales of
/// blocks and rows are a multiple of 32.
size_t PackedUnitBytes(WeightFormat format, int n, int k);
size_t PackedScaleBytes(WeightFormat format, int n, int k);

/// What a weight is packed from, in device memory.
struct UnpackedWeight {
  // bf16 or e4m3 codes (no NaN among them) [n, k], or gate [n / 2, k] with up [n / 2, k]. Codes of
  // 4 bits two to a byte, the even column in the lower half; kInt4 with 8 added to them.
  const void* w = nullptr;
  const void* up = nullptr;  // gate_up
  // Of blocks: float32 [ceil(rows / 128), ceil(k / 128)] of each; of rows (kF8Rows, kNvfp4):
  // float32 [rows] of each.
  const float* scales = nullptr;
  const float* up_scales = nullptr;
  // Of 4 bits: [rows, k / GroupColumns] of each: bf16 (kInt4), the byte e of 2^(e - 127) (kFp4), or
  // e4m3 (kNvfp4); no NaN, infinity or zero among them.
  const void* group_scales = nullptr;
  const void* up_group_scales = nullptr;
};

/// Writes weight.data, and scales where they are elsewhere. Throws Error for a shape that cannot
/// be: gate and up need a multiple of 8 rows each, codes of 4 bits columns that fill groups.
/// Products may read a weight before the kernel before them has finished, so the host must wait for
/// the stream before the first product with it.
///
/// kFp4: values that are below 2^-120 of the row's largest scale may lose bits.
void PackWeight(const UnpackedWeight& source, const PackedWeight& weight, cudaStream_t stream);

/// How products with this weight cut K.
MatMulSegments SegmentsOf(const PackedWeight& weight);

enum class OutputType { kBf16, kF32 };

/// Forms of a kernel body: how many rows of the weight a block has, how many blocks a
/// multiprocessor.
enum class MatMulVariant {
  kUsual,  // 64 rows of the weight (e4m3 and 128 rows of x: 128), several blocks
  kDeep,   // kUsual with more stages: bf16 alone on its multiprocessor; up to 64 rows of x
  kPair,   // bf16: 128 rows, one block; e2m1: 128 rows, two blocks
  kWide,   // 192 rows (e4m3: 128), one block
};

/// Which body runs. It changes no bit.
struct MatMulShape {
  // Rows of x per tile: usual 8, 16, 32, 64 or 128; deep up to 64; pair 192 or 256, e2m1 16 or 32
  // with one segment; wide 128, bf16 also 256.
  int tokens = 8;
  MatMulVariant variant = MatMulVariant::kUsual;
  int shares = 1;  // blocks that load rows of x for each other: 1, 2 or 4, up to 64 rows of x
  // A block sums all segments of K, one after the other: wide ones of 128 rows of x, bf16 also
  // deep ones of 64 and usual ones of 128. Else the blocks of a cluster have one each.
  bool all_segments = false;
};

/// Where gate and up are cut: y = min(silu(min(gate, limits.gate)), limits.silu) *
/// clamp(up, -limits.up, limits.up). NaN stays NaN.
struct GateUpLimits {
  float gate = std::numeric_limits<float>::infinity();
  float silu = std::numeric_limits<float>::infinity();
  float up = std::numeric_limits<float>::infinity();
};

/// Where some columns of a product's results go, as float32.
struct MatMulDestination {
  int columns = 0;         // behind those of the part before; a multiple of 64 but in the last one
  float* y = nullptr;      // of block 0; 16-byte aligned
  int64_t row_stride = 0;  // elements, a multiple of 4
  // Rows of a paged cache: row r is the one in place slots[r] % block_size of block
  // slots[r] / block_size; negative: it is not stored. On the device. Null: rows follow each other.
  const int64_t* slots = nullptr;
  int block_size = 1;        // a power of two
  int64_t block_stride = 0;  // elements, a multiple of 4
};

inline constexpr int kMaxDestinations = 5;

/// y[r] = W x[r], rounded to y_type; or y[r] += W x[r] (float32 only); with a gate_up weight
/// y[r] = silu(gate) * up, n / 2 columns.
struct MatMulParams {
  int rows = 0;             // 0 .. 1 << 20
  const void* x = nullptr;  // bf16 [rows, k]; with x_rows: [x_size, k]; 16-byte aligned
  int64_t x_stride = 0;     // elements, a multiple of 8
  // Optional, in device memory: row r reads x[x_rows[r]]; numbers are in [0, x_size). For a few
  // rows: such rows are loaded one by one, and from about 32 on CopyRows first is faster.
  const int32_t* x_rows = nullptr;
  int x_size = 0;
  PackedWeight w;
  // w holds `groups` matrices [n / groups, k] below one another. Each multiplies its own k columns
  // of x [rows, groups * k]. FitsGroups says where this is possible; x_rows is null then.
  int groups = 1;
  void* y = nullptr;     // [rows, columns], 16-byte aligned
  int64_t y_stride = 0;  // elements, a multiple of 8
  OutputType y_type = OutputType::kBf16;
  bool accumulate = false;
  // In the place of y: destinations that together have the columns. Not of gate and up, nor
  // accumulated.
  int num_destinations = 0;
  MatMulDestination destinations[kMaxDestinations] = {};
  GateUpLimits limits;                 // of gate and up
  const MatMulShape* shape = nullptr;  // for measurements and tests; null: what is fastest
};

/// Whether a product of `rows` rows can have `groups` groups: the weight's rows of a block must
/// belong to one group.
bool FitsGroups(const PackedWeight& w, int groups, int rows);

/// Throws Error for a call that cannot be, with what would be right, and for errors of CUDA.
///
/// Starts beside the end of the kernel before it (programmatic dependent launch): reads of weights
/// begin at once, all else waits for it.
void MatMul(const MatMulParams& params, cudaStream_t stream);

/// Products of the experts that a router chose: y[out] = W_e x[in] for every place of
/// ExpertRouting::pairs, where
///   gate and up: in = pairs[place] / choices, out = place; y = silu(gate) * up,
///   down:        in = place, out = pairs[place].
/// Expert e's weight stands at w.data + e * PackedWeightBytes; K is not cut.
struct ExpertMatMulParams {
  int max_rows = 0;         // of the step; the true number is the router's
  int choices = 0;          // of a row, with the shared expert
  int experts = 0;          // with the shared expert
  const void* x = nullptr;  // bf16: gate and up [max_rows, k], down [max_rows * choices, k]
  int64_t x_stride = 0;     // elements, a multiple of 8
  // Gate and up with tiles of more than 16 rows: room for [max_rows * choices, k] bf16, 16-byte
  // aligned, k a multiple of 8; x is copied there first, in order of place. Else not read.
  void* gathered = nullptr;
  bool is_gathered = false;  // a call with the same x and routing has copied x there already
  PackedWeight w;            // gate_up: gate and up; else down
  void* y = nullptr;         // [max_rows * choices, columns]
  int64_t y_stride = 0;      // elements, a multiple of 8
  OutputType y_type = OutputType::kBf16;
  GateUpLimits limits;         // of gate and up of the experts before the last `shared` ones
  GateUpLimits shared_limits;  // of those
  int shared = 0;
  ExpertRouting routing;
  // The kernel before this one in the stream is an ExpertMatMul with the same routing: then weights
  // are read before it ends. (An ExpertMatMul lets no kernel start before its routing is complete.)
  // Not for a part of a routing's tiles that may be empty: no block would wait then.
  bool routing_settled = false;
  int tile_rows = 0;                   // that the router made its tiles with: ExpertTileRows
  const MatMulShape* shape = nullptr;  // for measurements and tests; null: what is fastest
};

/// Rows per tile that suit `max_rows` rows and weights of `format`: what the router is asked for. A
/// power of two from 8 to 256.
int ExpertTileRows(WeightFormat format, int max_rows, int choices, int experts);

/// As MatMul. Reads the true number of tiles on the device.
void ExpertMatMul(const ExpertMatMulParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
