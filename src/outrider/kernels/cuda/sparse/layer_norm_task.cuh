// A row's layer norm by a warp; a lane has the same four columns of every 128.
#pragma once

#include "outrider/kernels/cuda/rows/row_values.cuh"
#include "outrider/kernels/cuda/sparse/layer_norm.h"

namespace outrider::cuda {

inline constexpr int kLayerNormColumns = 128;  // of a chunk, four for each lane
inline constexpr int kLayerNormChunks = 8;

/// The sum over a warp, in every lane.
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(~0u, value, mask));
  }
  return value;
}

__device__ __forceinline__ void NormRow(const LayerNormParams& params, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto n = static_cast<float>(params.width);
  const auto for_columns = [&](auto body) {
#pragma unroll
    for (int chunk = 0; chunk < kLayerNormChunks; ++chunk) {
      const int column = chunk * kLayerNormColumns + lane * 4;
      if (column < params.width) body(chunk, column);
    }
  };
  float4 x[kLayerNormChunks] = {};
  const float* from = params.x + row * params.x_stride;
  for_columns([&](int chunk, int column) { x[chunk] = LoadFour(from + column); });
  float sum = 0.0f;
  for_columns([&](int chunk, int) {
    sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, x[chunk].x), x[chunk].y), x[chunk].z),
                    x[chunk].w);
  });
  const float mean = __fdiv_rn(WarpSum(sum), n);
  float squares = 0.0f;
  for_columns([&](int chunk, int) {
    x[chunk] = x[chunk] + make_float4(-mean, -mean, -mean, -mean);
    squares = AddSquares(x[chunk], squares);
  });
  const float factor = NormFactor(WarpSum(squares), params.width, params.epsilon);
  float* to = params.y + row * params.y_stride;
  for_columns([&](int chunk, int column) {
    StoreFour(to + column, LoadFour(params.weight + column) * (x[chunk] * factor) +
                               LoadFour(params.bias + column));
  });
}

}  // namespace outrider::cuda
