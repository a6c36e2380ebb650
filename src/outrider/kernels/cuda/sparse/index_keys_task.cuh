// A key by a warp, four neighbouring values per lane.
#pragma once

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
  StoreFour(reinterpret_cast<__nv_bfloat16*>(block) + entry * kIndexDim + column,
            RotateHead(rotary, row, normal));
}

}  // namespace outrider::cuda
