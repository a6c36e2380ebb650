// Four neighbouring values of a row at a time, and sums over a block in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"

namespace outrider::cuda {

__device__ __forceinline__ float4 LoadFour(const float* source) {
  return *reinterpret_cast<const float4*>(source);
}
__device__ __forceinline__ float4 LoadFour(const __nv_bfloat16* source) {
  const uint2 raw = *reinterpret_cast<const uint2*>(source);
  return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u),
                     __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
}

__device__ __forceinline__ void StoreFour(float* destination, float4 v) {
  *reinterpret_cast<float4*>(destination) = v;
}
__device__ __forceinline__ void StoreFour(__nv_bfloat16* destination, float4 v) {
  *reinterpret_cast<uint2*>(destination) = make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
}
/// e4m3, saturated to +-448.
__device__ __forceinline__ void StoreFour(__nv_fp8_e4m3* destination, float4 v) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v.x, v.y), __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v.z, v.w), __NV_SATFINITE, __NV_E4M3);
  *reinterpret_cast<uint32_t*>(destination) = low | high << 16;
}

__device__ __forceinline__ float4 operator*(float4 v, float x) {
  return make_float4(__fmul_rn(v.x, x), __fmul_rn(v.y, x), __fmul_rn(v.z, x), __fmul_rn(v.w, x));
}
__device__ __forceinline__ float4 operator*(float4 v, float4 w) {
  return make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z),
                     __fmul_rn(v.w, w.w));
}
__device__ __forceinline__ float4 operator+(float4 v, float4 w) {
  return make_float4(__fadd_rn(v.x, w.x), __fadd_rn(v.y, w.y), __fadd_rn(v.z, w.z),
                     __fadd_rn(v.w, w.w));
}
/// sum + x * v
__device__ __forceinline__ float4 MultiplyAdd(float4 v, float x, float4 sum) {
  return make_float4(__fmaf_rn(v.x, x, sum.x), __fmaf_rn(v.y, x, sum.y), __fmaf_rn(v.z, x, sum.z),
                     __fmaf_rn(v.w, x, sum.w));
}
/// sum + the squares of v, one after another
__device__ __forceinline__ float AddSquares(float4 v, float sum) {
  sum = __fmaf_rn(v.x, v.x, sum);
  sum = __fmaf_rn(v.y, v.y, sum);
  sum = __fmaf_rn(v.z, v.z, sum);
  return __fmaf_rn(v.w, v.w, sum);
}

/// The sum over all kThreads threads of a block, in every one of them: a butterfly within each
/// warp, then the warps in order. One call per kernel: it does not wait for readers of `parts`.
template <int kThreads>
__device__ __forceinline__ float BlockSum(float value, float (&parts)[kThreads / 32]) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(~0u, value, mask));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = parts[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum = __fadd_rn(sum, parts[warp]);
  return sum;
}

/// 1 / sqrt(squares / n + epsilon), the factor of an RMS norm.
__device__ __forceinline__ float NormFactor(float squares, int n, float epsilon) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(n)), epsilon));
}

}  // namespace outrider::cuda
