// A warp takes a head of a row, four neighbouring values per lane.
#pragma once

#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/gqa/head_rows.h"
#include "outrider/kernels/cuda/rows/row_rotation.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kHeadRowsThreads = 256;

/// weight * x / sqrt(mean(x^2) + epsilon) of a head's 128 values; x without a weight.
__device__ __forceinline__ float4 NormHead(float4 x, const float* weight, float epsilon) {
  if (weight == nullptr) return x;
  float squares = AddSquares(x, 0.0F);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
  }
  const int lane = threadIdx.x % 32;
  return LoadFour(weight + 4 * lane) * (x * NormFactor(squares, kGqaHeadDim, epsilon));
}

/// The rotary embedding of the first `dims` of 128 values, a multiple of 8.
struct HeadRotary {
  const float* cos;  // [rows, dims / 2], magnitude included
  const float* sin;
  int dims;
  bool interleaved;  // rotated pairs (2i, 2i + 1); else (i, i + dims / 2)
};

/// The head's values rotated by the angles of `row`.
__device__ __forceinline__ float4 RotateHead(const HeadRotary& rotary, int row, float4 x) {
  const int lane = threadIdx.x % 32;
  const int half = rotary.dims / 2;
  const int64_t angles = static_cast<int64_t>(row) * half;
  const bool rotated = 4 * lane < rotary.dims;
  if (rotary.interleaved) {
    if (!rotated) return x;
    const float2 cos = *reinterpret_cast<const float2*>(rotary.cos + angles + 2 * lane);
    const float2 sin = *reinterpret_cast<const float2*>(rotary.sin + angles + 2 * lane);
    return make_float4(RotateFirst(x.x, x.y, cos.x, sin.x), RotateSecond(x.x, x.y, cos.x, sin.x),
                       RotateFirst(x.z, x.w, cos.y, sin.y), RotateSecond(x.z, x.w, cos.y, sin.y));
  }
  const bool first = 4 * lane < half;
  const int partner = first ? lane + half / 4 : lane - half / 4;
  const int source = rotated ? partner : lane;
  const float4 y = make_float4(__shfl_sync(~0u, x.x, source), __shfl_sync(~0u, x.y, source),
                               __shfl_sync(~0u, x.z, source), __shfl_sync(~0u, x.w, source));
  if (!rotated) return x;
  const int pair = first ? 4 * lane : 4 * lane - half;
  const float4 cos = LoadFour(rotary.cos + angles + pair);
  const float4 sin = LoadFour(rotary.sin + angles + pair);
  if (first) {
    return make_float4(RotateFirst(x.x, y.x, cos.x, sin.x), RotateFirst(x.y, y.y, cos.y, sin.y),
                       RotateFirst(x.z, y.z, cos.z, sin.z), RotateFirst(x.w, y.w, cos.w, sin.w));
  }
  return make_float4(RotateSecond(y.x, x.x, cos.x, sin.x), RotateSecond(y.y, x.y, cos.y, sin.y),
                     RotateSecond(y.z, x.z, cos.z, sin.z), RotateSecond(y.w, x.w, cos.w, sin.w));
}

/// Head `head` of row `row`: those of queries first, then of keys, then of values. All lanes.
template <typename Entry>
__device__ __forceinline__ void NormOneHead(const HeadRowsParams& params, int row, int head) {
  const int column = static_cast<int>(threadIdx.x % 32) * 4;
  const HeadRotary rotary = {params.cos, params.sin, params.rotary_dims, params.interleaved};
  if (head < params.heads) {
    auto* const q = static_cast<__nv_bfloat16*>(params.q) + row * params.q_stride +
                    static_cast<int64_t>(head) * kGqaHeadDim + column;
    const float4 x = NormHead(LoadFour(q), params.q_norm, params.epsilon);
    StoreFour(q, RotateHead(rotary, row, x));
    return;
  }
  const int64_t slot = params.slots[row];
  if (slot < 0) return;
  head -= params.heads;
  const bool is_value = head >= params.kv_heads;
  const auto* const from =
      is_value ? static_cast<const __nv_bfloat16*>(params.v) + row * params.v_stride
               : static_cast<const __nv_bfloat16*>(params.k) + row * params.k_stride;
  const int own = is_value ? head - params.kv_heads : head;
  float4 x = LoadFour(from + static_cast<int64_t>(own) * kGqaHeadDim + column);
  if (!is_value) x = RotateHead(rotary, row, NormHead(x, params.k_norm, params.epsilon));
  uint8_t* const block =
      static_cast<uint8_t*>(params.cache) + slot / params.block_size * params.block_stride;
  const int64_t entry = slot % params.block_size * (2 * params.kv_heads);
  StoreFour(reinterpret_cast<Entry*>(block) + (entry + head) * kGqaHeadDim + column, x);
}

}  // namespace outrider::cuda
