// Results whose columns go to several places, among them rows of paged caches.
#pragma once

#include "outrider/kernels/cuda/matmul/matmul_layout.h"

namespace outrider::cuda {

/// The destination that has `column` of the results; column becomes the destination's own.
__device__ __forceinline__ const MatMulDestination& DestinationOf(const MatMulArguments& args,
                                                                  int& column) {
  int i = 0;
  while (i < args.num_destinations - 1 && column >= args.destinations[i].columns) {
    column -= args.destinations[i++].columns;
  }
  return args.destinations[i];
}

/// A row of results in a destination; null: it is not stored.
__device__ __forceinline__ float* RowIn(const MatMulDestination& to, int64_t row) {
  if (to.slots == nullptr) return to.y + row * to.row_stride;
  const int64_t slot = to.slots[row];
  if (slot < 0) return nullptr;
  return to.y + (slot >> (31 - __clz(to.block_size))) * to.block_stride +
         (slot & (to.block_size - 1)) * to.row_stride;
}

/// Four results into columns column .. column + 3 of a row, as far as the destination has them.
__device__ __forceinline__ void PutFourIn(const MatMulDestination& to, int64_t row, int column,
                                          float4 value) {
  const int left = to.columns - column;
  float* const y = RowIn(to, row);
  if (y == nullptr || left <= 0) return;
  if (left >= 4) {
    *reinterpret_cast<float4*>(y + column) = value;
    return;
  }
  y[column] = value.x;
  if (left > 1) y[column + 1] = value.y;
  if (left > 2) y[column + 2] = value.z;
}

}  // namespace outrider::cuda
