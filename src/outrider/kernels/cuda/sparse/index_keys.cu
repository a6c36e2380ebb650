#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/sparse/index_keys.h"
#include "outrider/kernels/cuda/sparse/index_keys_task.cuh"

namespace outrider::cuda {
namespace {

constexpr int kIndexKeysThreads = 128;
constexpr int kRowsPerBlock = kIndexKeysThreads / 32;

__global__ void __launch_bounds__(kIndexKeysThreads)
    WriteIndexKeysKernel(const IndexKeysParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (row < params.num_rows) WriteIndexKey(params, row);
}

__global__ void __launch_bounds__(kIndexKeysThreads)
    RoundIndexQueriesKernel(const IndexQueriesParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t head =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / 32;
  if (head < static_cast<int64_t>(params.num_rows) * params.heads) RoundIndexQuery(params, head);
}

}  // namespace

cudaError_t WriteIndexKeys(const IndexKeysParams& params, cudaStream_t stream) {
  if (params.num_rows < 0) {
    RefuseArgument("WriteIndexKeys: num_rows is ", params.num_rows, ", it must not be negative");
  }
  if (params.x_stride < kIndexDim || params.x_stride % 4 != 0) {
    RefuseArgument("WriteIndexKeys: x_stride is ", params.x_stride,
                   ", it must be a multiple of 4 and at least ", kIndexDim);
  }
  if (params.block_size < 1 || params.block_stride % 16 != 0) {
    RefuseArgument("WriteIndexKeys: blocks of ", params.block_size, " keys, ", params.block_stride,
                   " bytes apart: the size must be positive, the distance a multiple of 16");
  }
  if (params.codes && params.block_size % 4 != 0) {
    RefuseArgument("WriteIndexKeys: blocks of ", params.block_size,
                   " keys in 8 bits: they must be a multiple of 4");
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int blocks = (params.num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return LaunchDependent(WriteIndexKeysKernel, dim3(blocks), dim3(kIndexKeysThreads), 0, stream,
                         params);
}

cudaError_t RoundIndexQueries(const IndexQueriesParams& params, cudaStream_t stream) {
  if (params.num_rows < 0 || params.heads < 1 ||
      (!params.fp4_numbers && params.weights_stride < params.heads)) {
    RefuseArgument("RoundIndexQueries: ", params.num_rows, " rows of ", params.heads,
                   " heads, weights ", params.weights_stride, " apart");
  }
  if (params.num_rows == 0) return cudaSuccess;
  const int64_t heads = static_cast<int64_t>(params.num_rows) * params.heads;
  const auto blocks = static_cast<unsigned>((heads + kRowsPerBlock - 1) / kRowsPerBlock);
  return LaunchDependent(RoundIndexQueriesKernel, dim3(blocks), dim3(kIndexKeysThreads), 0, stream,
                         params);
}

}  // namespace outrider::cuda
