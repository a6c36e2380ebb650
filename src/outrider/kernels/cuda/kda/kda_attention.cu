#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/once_per_device.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/kda/kda_attention.h"
#include "outrider/kernels/cuda/kda/kda_attention_task.cuh"

namespace outrider::cuda {
namespace {

constexpr int kMostHeads = 1 << 20;
constexpr int kMostRequests = 65535;  // of a grid's second dimension

__global__ void __launch_bounds__(kKdaThreads, 2)
    KdaAttentionKernel(const __grid_constant__ KdaAttentionParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  LaunchDependents();
  const KdaChannel channel = LoadChannel(params.rows, static_cast<int>(blockIdx.x));
  WaitForPriorGrid();
  if (params.rows.step.requests[blockIdx.y].num_rows == 0) return;
  KdaTask(params, *reinterpret_cast<KdaShared*>(memory), channel).Run();
}

void Check(const KdaAttentionParams& params) {
  const KdaRowsParams& rows = params.rows;
  const KdaStep& step = rows.step;
  if (step.num_rows < 0 || step.num_requests < 0 || step.num_requests > kMostRequests) {
    RefuseArgument("KdaAttention: ", step.num_rows, " rows of ", step.num_requests,
                   " requests: rows must not be negative, requests 0 to ", kMostRequests);
  }
  if (rows.heads < 1 || rows.heads > kMostHeads) {
    RefuseArgument("KdaAttention: heads is ", rows.heads, ", it must be 1 to ", kMostHeads);
  }
  const int64_t width = int64_t{rows.heads} * kKdaDim;
  if (rows.decay_stride < width || rows.decay_stride % 4 != 0) {
    RefuseArgument("KdaAttention: decay_stride is ", rows.decay_stride,
                   ", it must be a multiple of 4 that is at least ", width);
  }
  if (rows.stride < width || params.out_stride < width) {
    RefuseArgument("KdaAttention: stride is ", rows.stride, ", out_stride ", params.out_stride,
                   ", they must be at least ", width);
  }
  if (params.write_stride < rows.heads) {
    RefuseArgument("KdaAttention: write_stride is ", params.write_stride, ", it must be at least ",
                   rows.heads);
  }
  constexpr int64_t kLeastPage = int64_t{kKdaRowNumbers} * int64_t{sizeof(float)};
  if (rows.memory.page_bytes < kLeastPage || rows.memory.page_bytes % 16 != 0) {
    RefuseArgument("KdaAttention: page_bytes is ", rows.memory.page_bytes,
                   ", it must be a multiple of 16 that is at least ", kLeastPage);
  }
}

}  // namespace

cudaError_t KdaAttention(const KdaAttentionParams& params, cudaStream_t stream) {
  Check(params);
  if (params.rows.step.num_rows == 0 || params.rows.step.num_requests == 0) return cudaSuccess;
  static OncePerDevice once;
  const cudaError_t error = once.Call([] {
    return cudaFuncSetAttribute(KdaAttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(KdaShared)));
  });
  if (error != cudaSuccess) return error;
  return LaunchDependent(KdaAttentionKernel,
                         dim3(static_cast<unsigned>(params.rows.heads),
                              static_cast<unsigned>(params.rows.step.num_requests)),
                         dim3(kKdaThreads), sizeof(KdaShared), stream, params);
}

}  // namespace outrider::cuda
