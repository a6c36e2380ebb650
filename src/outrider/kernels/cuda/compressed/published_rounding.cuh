// DeepSeek-V4's published rounding of cache entries, with the float steps of the CPU
// (ops/cpu/entry_codec.cc): a group of numbers is divided by a power of two, rounded to e4m3 or
// e2m1 and multiplied again. A thread has four neighbouring numbers.
#pragma once

#include <cuda_fp8.h>

#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kFp8GroupLanes = 16;  // 64 numbers
inline constexpr int kFp4GroupLanes = 8;   // 32 numbers

/// The exponent, plus 127, of the least power of two with which no number of the group is above
/// `largest`; the largest number counts as `least` at least. All lanes of the group.
template <int kLanes>
__device__ __forceinline__ uint32_t GroupExponent(float4 x, float least, float largest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t group = ((1u << kLanes) - 1) << (lane / kLanes * kLanes);
  float most = fmaxf(fmaxf(fmaxf(least, fabsf(x.x)), fmaxf(fabsf(x.y), fabsf(x.z))), fabsf(x.w));
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    most = fmaxf(most, __shfl_xor_sync(group, most, mask));
  }
  const uint32_t bits = __float_as_uint(__fdiv_rn(most, largest));
  return (bits >> 23) + ((bits & 0x7FFFFF) != 0 ? 1 : 0);
}

__device__ __forceinline__ float RoundToFp8(float x) {
  return static_cast<float>(__nv_fp8_e4m3(x));
}
/// To 0, 0.5, 1, 1.5, 2, 3, 4 or 6, from the middle to the even code.
__device__ __forceinline__ float RoundToFp4(float x) {
  const float size = fabsf(x);
  const float rounded = size < 2.0F   ? rintf(size * 2.0F) * 0.5F
                        : size < 4.0F ? rintf(size)
                                      : fminf(rintf(size * 0.5F) * 2.0F, 6.0F);
  return copysignf(rounded, x);
}

/// The four numbers of a lane, rounded with its group of 16 lanes to e4m3.
__device__ __forceinline__ float4 RoundFp8Group(float4 x) {
  const uint32_t exponent = GroupExponent<kFp8GroupLanes>(x, 1e-4F, 448.0F);
  const float scale = __uint_as_float(exponent << 23);
  x = x * __uint_as_float((254 - exponent) << 23);
  return make_float4(RoundToFp8(x.x), RoundToFp8(x.y), RoundToFp8(x.z), RoundToFp8(x.w)) * scale;
}

/// The four numbers of a lane, rounded with its group of 8 lanes to e2m1.
__device__ __forceinline__ float4 RoundFp4Group(float4 x) {
  const uint32_t exponent = GroupExponent<kFp4GroupLanes>(x, 6 * 0x1p-126F, 6.0F);
  const float scale = __uint_as_float(exponent << 23);
  x = x * __uint_as_float((254 - exponent) << 23);
  return make_float4(RoundToFp4(x.x), RoundToFp4(x.y), RoundToFp4(x.z), RoundToFp4(x.w)) * scale;
}

}  // namespace outrider::cuda
