// A key by a warp, four neighbouring values per lane.
#pragma once

#include "outrider/kernels/cuda/compressed/published_rounding.cuh"
#include "outrider/kernels/cuda/gqa/head_rows_task.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"
#include "outrider/kernels/cuda/sparse/index_keys.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"

namespace outrider::cuda {

inline constexpr int kIndexRotary = 64;  // rotated values of a key

/// The sum over a warp, in every lane.
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(~0u, value, mask));
  }
  return value;
}

/// The Hadamard transform of a warp's 128 values, divided by the root of 128. The order of
/// additions is that of the CPU's (ops/cpu/entry_codec.cc), so that codes of equal numbers are
/// equal.
__device__ __forceinline__ float4 Hadamard(float4 x) {
  const float4 pairs = make_float4(__fadd_rn(x.x, x.y), __fsub_rn(x.x, x.y), __fadd_rn(x.z, x.w),
                                   __fsub_rn(x.z, x.w));
  x = make_float4(__fadd_rn(pairs.x, pairs.z), __fadd_rn(pairs.y, pairs.w),
                  __fsub_rn(pairs.x, pairs.z), __fsub_rn(pairs.y, pairs.w));
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const bool second = (threadIdx.x & mask) != 0;
    const auto combine = [&](float mine) {
      const float other = __shfl_xor_sync(~0u, mine, mask);
      return second ? __fsub_rn(other, mine) : __fadd_rn(mine, other);
    };
    x = make_float4(combine(x.x), combine(x.y), combine(x.z), combine(x.w));
  }
  return x * __fdiv_rn(1.0F, __fsqrt_rn(static_cast<float>(kIndexDim)));
}

/// The exponent of the scale of a warp's 128 values, plus 127.
__device__ __forceinline__ uint32_t ScaleExponent(float4 x) {
  const float most =
      fmaxf(fmaxf(fmaxf(1e-4F, fabsf(x.x)), fmaxf(fabsf(x.y), fabsf(x.z))), fabsf(x.w));
  // No float here is negative or NaN: they have the order of their bits.
  const uint32_t all = __reduce_max_sync(~0u, __float_as_uint(most));
  const uint32_t bits = __float_as_uint(__fdiv_rn(__uint_as_float(all), 448.0F));
  return (bits >> 23) + ((bits & 0x7FFFFF) != 0 ? 1 : 0);
}

/// Stores a warp's values, transformed, as codes; this lane's four at `codes`. Returns their scale.
__device__ __forceinline__ float StoreCodes(__nv_fp8_e4m3* codes, float4 x) {
  x = Hadamard(x);
  const uint32_t exponent = ScaleExponent(x);
  StoreFour(codes, x * __uint_as_float((254 - exponent) << 23));
  return __uint_as_float(exponent << 23);
}

/// Rounds head `head` of all rows' heads. All lanes of a warp.
__device__ __forceinline__ void RoundIndexQuery(const IndexQueriesParams& params, int64_t head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = head * kIndexDim + lane * 4;
  const float4 q = LoadFour(static_cast<const __nv_bfloat16*>(params.q) + at);
  if (params.fp4_numbers) {
    StoreFour(static_cast<__nv_bfloat16*>(params.codes) + at, RoundFp4Group(Hadamard(q)));
    return;
  }
  const float scale = StoreCodes(static_cast<__nv_fp8_e4m3*>(params.codes) + at, q);
  if (lane == 0) {
    const int64_t row = head / params.heads;
    const int64_t weight = row * params.weights_stride + head % params.heads;
    params.scaled[head] = __fmul_rn(params.weights[weight], scale);
  }
}

/// All lanes of a warp.
__device__ __forceinline__ void WriteIndexKey(const IndexKeysParams& params, int row) {
  const int64_t slot = params.slots[row];
  if (slot < 0) return;
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
  float4 x = LoadFour(params.x + row * params.x_stride + column);
  const float sum = WarpSum(__fadd_rn(__fadd_rn(__fadd_rn(x.x, x.y), x.z), x.w));
  const float mean = __fdiv_rn(sum, static_cast<float>(kIndexDim));
  x = x + make_float4(-mean, -mean, -mean, -mean);
  const float factor = NormFactor(WarpSum(AddSquares(x, 0.0F)), kIndexDim, params.epsilon);
  const float4 normal =
      LoadFour(params.weight + column) * (x * factor) + LoadFour(params.bias + column);
  const HeadRotary rotary = {.cos = params.cos,
                             .sin = params.sin,
                             .dims = kIndexRotary,
                             .interleaved = params.interleaved};
  uint8_t* const block =
      static_cast<uint8_t*>(params.cache) + slot / params.block_size * params.block_stride;
  const int64_t entry = slot % params.block_size;
  const float4 key = RotateHead(rotary, row, normal);
  if (!params.codes) {
    StoreFour(reinterpret_cast<__nv_bfloat16*>(block) + entry * kIndexDim + column, key);
    return;
  }
  const float scale =
      StoreCodes(reinterpret_cast<__nv_fp8_e4m3*>(block) + entry * kIndexDim + column, key);
  if (column == 0) {
    reinterpret_cast<float*>(block + static_cast<int64_t>(params.block_size) * kIndexDim)[entry] =
        scale;
  }
}

}  // namespace outrider::cuda
