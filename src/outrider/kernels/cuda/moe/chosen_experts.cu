// A thread per number. The launch begins when the router has ended, and the products when it has:
// it is between them only where somebody asks.
#include "outrider/kernels/cuda/moe/chosen_experts.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) ChosenExpertsKernel(const ChosenExpertsParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= params.num_rows * params.top_k) return;
  const int64_t row = i / params.top_k;
  const int64_t k = i % params.top_k;
  params.to[row * params.to_stride + k] =
      static_cast<int16_t>(params.ids[row * params.choices + k]);
}

}  // namespace

cudaError_t CopyChosenExperts(const ChosenExpertsParams& params, cudaStream_t stream) {
  const int64_t count = params.num_rows * params.top_k;
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  ChosenExpertsKernel<<<blocks, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
