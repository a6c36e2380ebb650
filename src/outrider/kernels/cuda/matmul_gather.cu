// Rows of x in the order of a routing's places, for expert products with many rows per tile.
#include "outrider/kernels/cuda/dependent_launch.h"
#include "outrider/kernels/cuda/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul_layout_sm90.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

/// A warp copies one row.
__global__ void __launch_bounds__(kThreads) GatherKernel(const GatherPairs gather) {
  // In this order, so that the products may read the routing as soon as they start.
  WaitForPriorGrid();
  LaunchDependents();
  const int place = (blockIdx.x * kThreads + threadIdx.x) / 32;
  if (place >= *gather.places) return;
  const auto* const from = static_cast<const uint8_t*>(gather.x) +
                           gather.pairs[place] / gather.choices * gather.x_stride * 2;
  auto* const to = static_cast<uint8_t*>(gather.to) + place * gather.to_stride * 2;
  // Rows of to have room for whole pieces of 16 bytes; so have those of x, whose stride is as much.
#pragma unroll 4
  for (int i = threadIdx.x % 32 * 16; i < gather.k * 2; i += 512) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  }
}

}  // namespace

cudaError_t LaunchGatherPairs(const GatherPairs& gather, cudaStream_t stream) {
  const dim3 blocks((gather.most * 32 + kThreads - 1) / kThreads);
  return LaunchDependent(GatherKernel, blocks, dim3(kThreads), 0, stream, gather);
}

}  // namespace outrider::cuda
