// Window rows and latents: a block per row, four neighbouring numbers per thread. Query heads: a
// warp per head, or for four heads of an indexer.
#include <tuple>

#include "outrider/kernels/cuda/compressed/published_rounding.cuh"
#include "outrider/kernels/cuda/compressed/query_rows.h"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/row_rotation.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {
namespace {

constexpr int kDim = 512;
constexpr int kRotary = 64;
constexpr int kIndexDim = 128;
constexpr int kIndexHeads = kDim / kIndexDim;  // of a warp
constexpr int kWindowThreads = kDim / 4;
constexpr int kHeadThreads = 256;
constexpr int kMaxLatent = 2048;

/// Two pairs of the last 64 numbers from `column` on, rotated by the angles of `row`.
__device__ __forceinline__ float4 RotateTail(const float* cos, const float* sin, int64_t row,
                                             int column, float4 x) {
  if (column < kDim - kRotary) return x;
  const int64_t at = row * (kRotary / 2) + (column - (kDim - kRotary)) / 2;
  const float2 c = *reinterpret_cast<const float2*>(cos + at);
  const float2 s = *reinterpret_cast<const float2*>(sin + at);
  return make_float4(RotateFirst(x.x, x.y, c.x, s.x), RotateSecond(x.x, x.y, c.x, s.x),
                     RotateFirst(x.z, x.w, c.y, s.y), RotateSecond(x.z, x.w, c.y, s.y));
}

template <typename Input>
__device__ __forceinline__ void WriteWindowRow(const WindowRowsParams& params, int row,
                                               float (&parts)[kWindowThreads / 32]) {
  const int64_t slot = params.slots[row];
  if (slot < 0) return;
  const int column = static_cast<int>(threadIdx.x) * 4;
  const float4 x = LoadFour(static_cast<const Input*>(params.kv) + row * params.kv_stride + column);
  const float squares = BlockSum<kWindowThreads>(AddSquares(x, 0.0F), parts);
  const float4 normal =
      LoadFour(params.weight + column) * (x * NormFactor(squares, kDim, params.epsilon));
  uint8_t* const block =
      static_cast<uint8_t*>(params.cache) + slot / params.block_size * params.block_stride;
  const int64_t at = slot % params.block_size * kDim + column;
  float4 rotated = RotateTail(params.cos, params.sin, row, column, normal);
  if (params.rounds && column < kDim - kRotary) rotated = RoundFp8Group(rotated);
  if (params.codes) {
    StoreFour(reinterpret_cast<__nv_fp8_e4m3*>(block) + at, rotated);
  } else {
    StoreFour(reinterpret_cast<__nv_bfloat16*>(block) + at, rotated);
  }
}

template <typename Input>
__device__ __forceinline__ void NormLatent(const WindowRowsParams& params, int row,
                                           float (&parts)[kWindowThreads / 32]) {
  constexpr int kStep = 4 * kWindowThreads;
  const Input* const from = static_cast<const Input*>(params.q) + row * params.q_stride;
  float4 x[kMaxLatent / kStep];
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kMaxLatent / kStep; ++i) {
    const int column = i * kStep + static_cast<int>(threadIdx.x) * 4;
    x[i] = make_float4(0, 0, 0, 0);
    if (column < params.q_columns) x[i] = LoadFour(from + column);
    squares = AddSquares(x[i], squares);
  }
  const float factor =
      NormFactor(BlockSum<kWindowThreads>(squares, parts), params.q_columns, params.epsilon);
  auto* const to = static_cast<__nv_bfloat16*>(params.q_out) + row * params.q_out_stride;
#pragma unroll
  for (int i = 0; i < kMaxLatent / kStep; ++i) {
    const int column = i * kStep + static_cast<int>(threadIdx.x) * 4;
    if (column < params.q_columns) {
      StoreFour(to + column, LoadFour(params.q_weight + column) * (x[i] * factor));
    }
  }
}

template <typename Input>
__global__ void __launch_bounds__(kWindowThreads)
    WindowRowsKernel(const __grid_constant__ WindowRowsParams params) {
  __shared__ float parts[kWindowThreads / 32];
  LaunchDependents();
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    WriteWindowRow<Input>(params, row, parts);
  } else {
    NormLatent<Input>(params, row, parts);
  }
}

__global__ void __launch_bounds__(kHeadThreads)
    QueryHeadsKernel(const __grid_constant__ QueryHeadsParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int parts = params.heads + params.index_heads / kIndexHeads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kHeadThreads / 32) + threadIdx.x / 32;
  const int64_t row = item / parts;
  if (row >= params.num_rows) return;
  const int part = static_cast<int>(item % parts);
  const auto* const from =
      static_cast<const __nv_bfloat16*>(params.from) + row * params.from_stride + part * kDim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float4 x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = LoadFour(from + i * 128 + lane * 4);
  if (part >= params.heads) {
    auto* const to = static_cast<__nv_bfloat16*>(params.index_q) + row * params.index_stride +
                     (part - params.heads) * kDim;
    // The ends of these heads are rotated as a head's end is.
    const int in_head = lane * 4 + kDim - kIndexDim;
#pragma unroll
    for (int i = 0; i < kIndexHeads; ++i) {
      StoreFour(to + i * kIndexDim + lane * 4,
                RotateTail(params.cos, params.sin, row, in_head, x[i]));
    }
    return;
  }
  auto* const to = static_cast<__nv_bfloat16*>(params.q) + row * params.q_stride + part * kDim;
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) squares = AddSquares(x[i], squares);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
  }
  const float factor = NormFactor(squares, kDim, params.epsilon);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = i * 128 + lane * 4;
    StoreFour(to + column, RotateTail(params.cos, params.sin, row, column, x[i] * factor));
  }
}

void Check(const WindowRowsParams& params) {
  if (params.num_rows < 0) {
    RefuseArgument("WriteWindowRows: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.input_dtype != DType::kF32 && params.input_dtype != DType::kBF16) {
    RefuseArgument("WriteWindowRows: rows of ", DTypeName(params.input_dtype),
                   ": they must be float32 or bfloat16");
  }
  if (params.kv_stride < kDim || params.kv_stride % 4 != 0) {
    RefuseArgument("WriteWindowRows: kv_stride is ", params.kv_stride,
                   ", it must be a multiple of 4 and at least ", kDim);
  }
  if (params.block_size < 1 || params.block_stride % 16 != 0) {
    RefuseArgument("WriteWindowRows: blocks of ", params.block_size, " rows, ", params.block_stride,
                   " bytes apart: the size must be positive, the distance a multiple of 16");
  }
  if (params.q == nullptr) return;
  if (params.q_columns < 4 || params.q_columns > kMaxLatent || params.q_columns % 4 != 0) {
    RefuseArgument("WriteWindowRows: q_columns is ", params.q_columns,
                   ", it must be a multiple of 4 up to ", kMaxLatent);
  }
  if (params.q_stride < params.q_columns || params.q_stride % 4 != 0 ||
      params.q_out_stride < params.q_columns || params.q_out_stride % 4 != 0) {
    RefuseArgument("WriteWindowRows: strides of q are ", params.q_stride, " and ",
                   params.q_out_stride, ", they must be multiples of 4 and at least ",
                   params.q_columns);
  }
}

}  // namespace

cudaError_t WriteWindowRows(const WindowRowsParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(params.num_rows), params.q != nullptr ? 2 : 1);
  const auto kernel =
      params.input_dtype == DType::kF32 ? WindowRowsKernel<float> : WindowRowsKernel<__nv_bfloat16>;
  return LaunchDependent(kernel, blocks, dim3(kWindowThreads), 0, stream, params);
}

cudaError_t FinishQueryHeads(const QueryHeadsParams& params, cudaStream_t stream) {
  if (params.num_rows < 0 || params.heads < 1 || params.index_heads < 0 ||
      params.index_heads % kIndexHeads != 0) {
    RefuseArgument("FinishQueryHeads: ", params.num_rows, " rows of ", params.heads, " heads and ",
                   params.index_heads, " of an indexer: rows must not be negative, heads at least ",
                   "1, an indexer's a multiple of ", kIndexHeads);
  }
  const int64_t columns = int64_t{params.heads} * kDim;
  const int64_t index_columns = int64_t{params.index_heads} * kIndexDim;
  for (const auto& [name, stride, least] :
       {std::tuple("from_stride", params.from_stride, columns + index_columns),
        std::tuple("q_stride", params.q_stride, columns),
        std::tuple("index_stride", params.index_stride, index_columns)}) {
    if (stride < least || stride % 8 != 0) {
      RefuseArgument("FinishQueryHeads: ", name, " is ", stride,
                     ", it must be a multiple of 8 and at least ", least);
    }
  }
  if (params.num_rows == 0) return cudaSuccess;
  constexpr int64_t kHeadsOfBlock = kHeadThreads / 32;
  const int64_t heads =
      int64_t{params.num_rows} * (params.heads + params.index_heads / kIndexHeads);
  return LaunchDependent(QueryHeadsKernel,
                         dim3(static_cast<unsigned>((heads + kHeadsOfBlock - 1) / kHeadsOfBlock)),
                         dim3(kHeadThreads), 0, stream, params);
}

}  // namespace outrider::cuda
