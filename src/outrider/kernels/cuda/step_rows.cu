// One warp per row. The latent's sum of squares: 16 values per lane in order, then a butterfly over
// lanes; the same for every row count.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "outrider/kernels/cuda/step_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

int BlocksFor(int rows) { return (rows * 32 + kThreads - 1) / kThreads; }

/// Eight bf16 in one load.
__device__ __forceinline__ void LoadEight(const __nv_bfloat16* source, float (&values)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(source);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ void StoreEight(__nv_bfloat16* destination, const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  *reinterpret_cast<uint4*>(destination) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint8_t ToE4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

template <bool kE4m3>
__global__ void __launch_bounds__(kThreads) WriteLatentKernel(LatentWriteParams params) {
  const int row = (blockIdx.x * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= params.num_rows) return;
  const int64_t slot = params.slot_mapping[row];
  if (slot < 0) return;
  const auto* kv = static_cast<const __nv_bfloat16*>(params.kv) + static_cast<int64_t>(row) * 576;
  float latent[2][8];
  float squares = 0.0f;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    LoadEight(kv + part * 256 + lane * 8, latent[part]);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = __fmaf_rn(latent[part][i], latent[part][i], squares);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(~0u, squares, mask);
  const float scale = __frsqrt_rn(__fadd_rn(squares * (1.0f / 512), params.epsilon));
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      latent[part][i] =
          __fmul_rn(params.weight[part * 256 + lane * 8 + i], __fmul_rn(latent[part][i], scale));
    }
  }
  // Lane i rotates pair i.
  const int first = params.interleaved ? 2 * lane : lane;
  const int second = params.interleaved ? 2 * lane + 1 : lane + 32;
  const float a = __bfloat162float(kv[512 + first]);
  const float b = __bfloat162float(kv[512 + second]);
  const float cos = params.cos[static_cast<int64_t>(row) * 32 + lane];
  const float sin = params.sin[static_cast<int64_t>(row) * 32 + lane];
  const float rotated_a = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  const float rotated_b = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  if constexpr (kE4m3) {
    auto* cache = static_cast<uint8_t*>(params.cache) + slot * 576;
    const float inverse = 1.0f / params.cache_scale;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t words[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        words[i / 4] |= static_cast<uint32_t>(ToE4m3(latent[part][i] * inverse)) << i % 4 * 8;
      }
      *reinterpret_cast<uint2*>(cache + part * 256 + lane * 8) = make_uint2(words[0], words[1]);
    }
    cache[512 + first] = ToE4m3(rotated_a * inverse);
    cache[512 + second] = ToE4m3(rotated_b * inverse);
  } else {
    auto* cache = static_cast<__nv_bfloat16*>(params.cache) + slot * 576;
#pragma unroll
    for (int part = 0; part < 2; ++part) StoreEight(cache + part * 256 + lane * 8, latent[part]);
    cache[512 + first] = __float2bfloat16_rn(rotated_a);
    cache[512 + second] = __float2bfloat16_rn(rotated_b);
  }
}

__global__ void __launch_bounds__(kThreads)
    MergeKernel(const __nv_bfloat16* a, const float* lse_a, const __nv_bfloat16* b,
                const float* lse_b, int num_rows, int width, __nv_bfloat16* output, float* lse) {
  const int row = (blockIdx.x * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= num_rows) return;
  const float x = lse_a[row];
  const float y = lse_b[row];
  __syncwarp();
  const float top = fmaxf(x, y);
  const bool empty = top == -INFINITY;
  const float weight_x = empty ? 0.0f : expf(x - top);
  const float weight_y = empty ? 0.0f : expf(y - top);
  const float sum = weight_x + weight_y;
  const float factor_x = empty ? 0.0f : weight_x / sum;
  const float factor_y = empty ? 0.0f : weight_y / sum;
  for (int column = lane * 8; column < width; column += 256) {
    const int64_t at = static_cast<int64_t>(row) * width + column;
    float left[8], right[8];
    LoadEight(a + at, left);
    LoadEight(b + at, right);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // A side without keys may hold anything.
      const float from_x = factor_x == 0.0f ? 0.0f : __fmul_rn(left[i], factor_x);
      left[i] = factor_y == 0.0f ? from_x : __fmaf_rn(right[i], factor_y, from_x);
    }
    StoreEight(output + at, left);
  }
  if (lane == 0) lse[row] = empty ? -INFINITY : top + logf(sum);
}

__global__ void __launch_bounds__(kThreads)
    GatherKernel(const uint4* input, const int* rows, int num_rows, int chunks, uint4* output) {
  const int row = (blockIdx.x * kThreads + threadIdx.x) / 32;
  if (row >= num_rows || rows[row] < 0) return;
  const uint4* source = input + static_cast<int64_t>(rows[row]) * chunks;
  uint4* destination = output + static_cast<int64_t>(row) * chunks;
  for (int i = threadIdx.x % 32; i < chunks; i += 32) destination[i] = source[i];
}

}  // namespace

cudaError_t WriteLatentRows(const LatentWriteParams& params, cudaStream_t stream) {
  if (params.num_rows < 0 || !(params.cache_scale > 0.0f)) return cudaErrorInvalidValue;
  if (params.num_rows == 0) return cudaSuccess;
  if (params.cache_type == MlaCacheType::kE4m3) {
    WriteLatentKernel<true><<<BlocksFor(params.num_rows), kThreads, 0, stream>>>(params);
  } else {
    WriteLatentKernel<false><<<BlocksFor(params.num_rows), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

cudaError_t MergeAttentionRows(const void* a, const float* lse_a, const void* b, const float* lse_b,
                               int num_rows, int width, void* output, float* lse,
                               cudaStream_t stream) {
  if (num_rows < 0 || width <= 0 || width % 8 != 0) return cudaErrorInvalidValue;
  if (num_rows == 0) return cudaSuccess;
  MergeKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(a), lse_a, static_cast<const __nv_bfloat16*>(b), lse_b,
      num_rows, width, static_cast<__nv_bfloat16*>(output), lse);
  return cudaGetLastError();
}

cudaError_t GatherRows(const void* input, const int* rows, int num_rows, int width, void* output,
                       cudaStream_t stream) {
  if (num_rows < 0 || width <= 0 || width % 8 != 0) return cudaErrorInvalidValue;
  if (num_rows == 0) return cudaSuccess;
  GatherKernel<<<BlocksFor(num_rows), kThreads, 0, stream>>>(
      static_cast<const uint4*>(input), rows, num_rows, width / 8, static_cast<uint4*>(output));
  return cudaGetLastError();
}

}  // namespace outrider::cuda
