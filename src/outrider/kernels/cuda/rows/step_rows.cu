// A block per row, and a second one for the row's query. Sums are those of row_values.cuh, the same
// for every row count.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"
#include "outrider/kernels/cuda/rows/step_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLatent = 512;
constexpr int kRotary = 64;
constexpr int kMaxQueryColumns = 2048;

__device__ __forceinline__ void StoreOne(__nv_bfloat16* destination, float value) {
  *destination = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void StoreOne(__nv_fp8_e4m3* destination, float value) {
  destination->__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

/// One block: the norm of a row's query.
template <typename Input>
__device__ __forceinline__ void NormQuery(const LatentWriteParams& params, int row,
                                          float (&parts)[kThreads / 32]) {
  const auto* q = static_cast<const Input*>(params.q) + row * params.row_stride;
  auto* out =
      static_cast<__nv_bfloat16*>(params.q_out) + static_cast<int64_t>(row) * params.q_columns;
  constexpr int kChunks = kMaxQueryColumns / (4 * kThreads);
  float4 values[kChunks] = {};
  float squares = 0.0f;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int column = (chunk * kThreads + static_cast<int>(threadIdx.x)) * 4;
    if (column < params.q_columns) values[chunk] = LoadFour(q + column);
  }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) squares = AddSquares(values[chunk], squares);
  const float factor =
      NormFactor(BlockSum<kThreads>(squares, parts), params.q_columns, params.epsilon);
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int column = (chunk * kThreads + static_cast<int>(threadIdx.x)) * 4;
    if (column < params.q_columns) {
      StoreFour(out + column, LoadFour(params.q_weight + column) * (values[chunk] * factor));
    }
  }
}

/// A slot's entry.
template <typename Entry>
__device__ __forceinline__ Entry* EntryOf(const LatentWriteParams& params, int64_t slot) {
  constexpr int64_t kBytes = (kLatent + kRotary) * sizeof(Entry);
  const int64_t offset = params.block_stride == 0 ? slot * kBytes
                                                  : slot / params.block_size * params.block_stride +
                                                        slot % params.block_size * kBytes;
  return reinterpret_cast<Entry*>(static_cast<std::byte*>(params.cache) + offset);
}

/// One block: a row's entry of the cache.
template <typename Input, typename Entry>
__device__ __forceinline__ void WriteEntry(const LatentWriteParams& params, int row,
                                           float (&parts)[kThreads / 32]) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto* kv = static_cast<const Input*>(params.kv) + row * params.row_stride;
  const float4 latent = LoadFour(kv + 4 * thread);
  const int64_t slot = params.slot_mapping[row];
  // Thread i < 32 rotates pair i.
  const int pair = thread % 32;
  const RotaryTable& rotary = params.rotary;
  const int first = rotary.interleaved ? 2 * pair : pair;
  const int second = rotary.interleaved ? 2 * pair + 1 : pair + 32;
  float a = 0.0f, b = 0.0f, cos = 0.0f, sin = 0.0f;
  if (thread < 32) {
    const int64_t entry = rotary.positions != nullptr ? rotary.positions[row] : row;
    a = ToFloat(kv[kLatent + first]);
    b = ToFloat(kv[kLatent + second]);
    cos = rotary.cos[entry * 32 + pair];
    sin = rotary.sin[entry * 32 + pair];
  }
  const float squares = BlockSum<kThreads>(AddSquares(latent, 0.0f), parts);
  if (slot < 0) return;
  const float factor = NormFactor(squares, kLatent, params.epsilon);
  const bool scaled = sizeof(Entry) == 1;
  const float inverse = scaled ? 1.0f / params.cache_scale : 1.0f;
  float4 normal = LoadFour(params.weight + 4 * thread) * (latent * factor);
  if (scaled) normal = normal * inverse;
  auto* cache = EntryOf<Entry>(params, slot);
  StoreFour(cache + 4 * thread, normal);
  if (thread >= 32) return;
  const float rotated_a = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  const float rotated_b = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  StoreOne(cache + kLatent + first, scaled ? rotated_a * inverse : rotated_a);
  StoreOne(cache + kLatent + second, scaled ? rotated_b * inverse : rotated_b);
}

template <typename Input, typename Entry>
__global__ void __launch_bounds__(kThreads) WriteLatentKernel(const LatentWriteParams params) {
  __shared__ float parts[kThreads / 32];
  LaunchDependents();
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x);
  if (params.true_rows != nullptr && row >= *params.true_rows) return;
  if (blockIdx.y == 0) {
    WriteEntry<Input, Entry>(params, row, parts);
  } else {
    NormQuery<Input>(params, row, parts);
  }
}

void Check(const LatentWriteParams& params) {
  if (params.num_rows < 0) {
    RefuseArgument("WriteLatentRows: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.input_dtype != DType::kF32 && params.input_dtype != DType::kBF16) {
    RefuseArgument("WriteLatentRows: kv is ", DTypeName(params.input_dtype),
                   ", it must be float32 or bfloat16");
  }
  if (params.row_stride % 4 != 0) {
    RefuseArgument("WriteLatentRows: row_stride is ", params.row_stride,
                   ", it must be a multiple of 4");
  }
  if (params.block_stride != 0 && (params.block_stride % 16 != 0 || params.block_size < 1)) {
    RefuseArgument("WriteLatentRows: blocks of ", params.block_size, " entries, ",
                   params.block_stride,
                   " bytes apart: the size must be positive, the distance a multiple of 16");
  }
  if (!(params.cache_scale > 0.0f)) {
    RefuseArgument("WriteLatentRows: cache_scale is ", params.cache_scale, ", it must be above 0");
  }
  if (params.q != nullptr &&
      (params.q_columns <= 0 || params.q_columns % 4 != 0 || params.q_columns > kMaxQueryColumns)) {
    RefuseArgument("WriteLatentRows: q_columns is ", params.q_columns,
                   ", it must be a multiple of 4 up to ", kMaxQueryColumns);
  }
}

template <typename Input, typename Entry>
cudaError_t LaunchWrite(const LatentWriteParams& params, cudaStream_t stream) {
  return LaunchDependent(WriteLatentKernel<Input, Entry>,
                         dim3(params.num_rows, params.q != nullptr ? 2 : 1), dim3(kThreads), 0,
                         stream, params);
}

}  // namespace

cudaError_t WriteLatentRows(const LatentWriteParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  const bool e4m3 = params.cache_type == MlaCacheType::kE4m3;
  if (params.input_dtype == DType::kF32) {
    return e4m3 ? LaunchWrite<float, __nv_fp8_e4m3>(params, stream)
                : LaunchWrite<float, __nv_bfloat16>(params, stream);
  }
  return e4m3 ? LaunchWrite<__nv_bfloat16, __nv_fp8_e4m3>(params, stream)
              : LaunchWrite<__nv_bfloat16, __nv_bfloat16>(params, stream);
}

}  // namespace outrider::cuda
