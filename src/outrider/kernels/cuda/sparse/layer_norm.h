// Layer norm with a bias, of short rows: an indexer's keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct LayerNormParams {
  int num_rows = 0;
  int width = 0;                  // a multiple of 4 in 4 .. 1024
  const float* x = nullptr;       // [num_rows, x_stride]; 16-byte aligned, like all below
  int64_t x_stride = 0;           // elements, a multiple of 4 and at least `width`
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  float epsilon = 1e-6F;
  float* y = nullptr;    // [num_rows, y_stride]; may be x, with x's stride
  int64_t y_stride = 0;  // as x_stride
};

/// y = weight * ((x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)) + bias for every row, sums
/// in float32. A row's bits depend on that row alone. Throws Error for parameters outside the
/// ranges above; otherwise returns what the launch returned.
cudaError_t LayerNormRows(const LayerNormParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
