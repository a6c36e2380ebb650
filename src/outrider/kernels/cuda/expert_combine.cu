// The sum over a row's experts, in order of choice, and the residual.
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

/// A thread adds up four columns of one row.
__global__ void __launch_bounds__(kThreads)
    CombineKernel(const float* x, const float* weights, int choices, int n, float* y,
                  int64_t y_stride) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t row = blockIdx.x;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * 4;
  if (column >= n) return;
  const float* const from = x + row * choices * n + column;
  float4* const to = reinterpret_cast<float4*>(y + row * y_stride + column);
  const float4 old = *to;
  float4 sum = {};
  for (int first = 0; first < choices; first += 8) {
    float4 parts[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i < choices) {
        parts[i] = *reinterpret_cast<const float4*>(from + static_cast<int64_t>(first + i) * n);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i < choices) {
        const float weight = weights[row * choices + first + i];
        sum.x = __fmaf_rn(weight, parts[i].x, sum.x);
        sum.y = __fmaf_rn(weight, parts[i].y, sum.y);
        sum.z = __fmaf_rn(weight, parts[i].z, sum.z);
        sum.w = __fmaf_rn(weight, parts[i].w, sum.w);
      }
    }
  }
  *to = make_float4(__fadd_rn(old.x, sum.x), __fadd_rn(old.y, sum.y), __fadd_rn(old.z, sum.z),
                    __fadd_rn(old.w, sum.w));
}

}  // namespace

cudaError_t LaunchCombineExperts(const float* x, const float* weights, int rows, int choices, int n,
                                 float* y, int64_t y_stride, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows, (n + kThreads * 4 - 1) / (kThreads * 4));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, CombineKernel, x, weights, choices, n, y, y_stride);
}

}  // namespace outrider::cuda
