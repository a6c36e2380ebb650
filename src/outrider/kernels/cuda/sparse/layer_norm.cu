#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sparse/layer_norm.h"
#include "outrider/kernels/cuda/sparse/layer_norm_task.cuh"

namespace outrider::cuda {
namespace {

constexpr int kLayerNormThreads = 128;
constexpr int kRowsPerBlock = kLayerNormThreads / 32;

__global__ void __launch_bounds__(kLayerNormThreads) LayerNormKernel(const LayerNormParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (row < params.num_rows) NormRow(params, row);
}

bool GoodStride(int64_t stride, int width) { return stride >= width && stride % 4 == 0; }

}  // namespace

cudaError_t LayerNormRows(const LayerNormParams& params, cudaStream_t stream) {
  constexpr int kMost = kLayerNormColumns * kLayerNormChunks;
  if (params.num_rows < 0) {
    RefuseArgument("LayerNormRows: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.width < 4 || params.width > kMost || params.width % 4 != 0) {
    RefuseArgument("LayerNormRows: width is ", params.width,
                   ", it must be a multiple of 4 from 4 to ", kMost);
  }
  if (!GoodStride(params.x_stride, params.width) || !GoodStride(params.y_stride, params.width)) {
    RefuseArgument("LayerNormRows: strides ", params.x_stride, " and ", params.y_stride,
                   " must be multiples of 4 and at least ", params.width);
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int blocks = (params.num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return LaunchDependent(LayerNormKernel, dim3(blocks), dim3(kLayerNormThreads), 0, stream, params);
}

}  // namespace outrider::cuda
