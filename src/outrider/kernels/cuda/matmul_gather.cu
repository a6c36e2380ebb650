// Rows of x in the order of a routing's places, for expert products with many rows per tile.
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

/// A warp copies one row.
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const uint8_t* x, int64_t x_bytes, int k_bytes, const int32_t* pairs,
                 const int32_t* places, int choices, uint8_t* to, int64_t to_bytes) {
  // In this order, so that the products may read the routing as soon as they start.
  WaitForPriorGrid();
  LaunchDependents();
  const int place = (blockIdx.x * kThreads + threadIdx.x) / 32;
  if (place >= *places) return;
  const uint8_t* const from = x + pairs[place] / choices * x_bytes;
  // Rows of to have room for whole pieces of 16 bytes; so have those of x, whose stride is as much.
#pragma unroll 4
  for (int i = threadIdx.x % 32 * 16; i < k_bytes; i += 512) {
    *reinterpret_cast<uint4*>(to + place * to_bytes + i) =
        *reinterpret_cast<const uint4*>(from + i);
  }
}

}  // namespace

cudaError_t LaunchGatherPairs(const void* x, int64_t x_stride, int k, const int32_t* pairs,
                              const int32_t* places, int choices, int most, void* to,
                              int64_t to_stride, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((most * 32 + kThreads - 1) / kThreads);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, GatherKernel, static_cast<const uint8_t*>(x), x_stride * 2,
                            k * 2, pairs, places, choices, static_cast<uint8_t*>(to),
                            to_stride * 2);
}

}  // namespace outrider::cuda
