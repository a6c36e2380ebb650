#include "outrider/kernels/cuda/gqa/head_rows.h"
#include "outrider/kernels/cuda/gqa/head_rows_task.cuh"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"

namespace outrider::cuda {
namespace {

constexpr int kWarps = kHeadRowsThreads / 32;

template <typename Entry>
__global__ void __launch_bounds__(kHeadRowsThreads)
    NormHeadRowsKernel(const HeadRowsParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= params.heads + 2 * params.kv_heads) return;
  NormOneHead<Entry>(params, static_cast<int>(blockIdx.x), head);
}

void Check(const HeadRowsParams& params) {
  if (params.num_rows < 0 || params.heads < 0 || params.kv_heads <= 0) {
    RefuseArgument("NormHeadRows: ", params.num_rows, " rows of ", params.heads, " and ",
                   params.kv_heads, " heads: they must not be negative, with key heads");
  }
  if (params.rotary_dims % 8 != 0 || params.rotary_dims < 0 || params.rotary_dims > kGqaHeadDim) {
    RefuseArgument("NormHeadRows: rotary_dims is ", params.rotary_dims,
                   ", it must be a multiple of 8 up to ", kGqaHeadDim);
  }
  if (params.q_stride % 4 != 0 || params.k_stride % 4 != 0 || params.v_stride % 4 != 0 ||
      params.block_size <= 0 || params.block_stride % 16 != 0) {
    RefuseArgument("NormHeadRows: strides ", params.q_stride, ", ", params.k_stride, " and ",
                   params.v_stride, " must be multiples of 4, that of blocks of ",
                   params.block_size, " tokens, ", params.block_stride, " bytes, of 16");
  }
  if (params.cache_dtype != DType::kBF16 && params.cache_dtype != DType::kF8E4M3) {
    RefuseArgument("NormHeadRows: the cache is ", DTypeName(params.cache_dtype),
                   ", it must be bfloat16 or e4m3");
  }
}

}  // namespace

cudaError_t NormHeadRows(const HeadRowsParams& params, cudaStream_t stream) {
  Check(params);
  if (params.num_rows == 0) return cudaSuccess;
  const int heads = params.heads + 2 * params.kv_heads;
  const dim3 blocks(params.num_rows, (heads + kWarps - 1) / kWarps);
  const auto kernel = params.cache_dtype == DType::kBF16 ? NormHeadRowsKernel<__nv_bfloat16>
                                                         : NormHeadRowsKernel<__nv_fp8_e4m3>;
  return LaunchDependent(kernel, blocks, dim3(kHeadRowsThreads), 0, stream, params);
}

}  // namespace outrider::cuda
