// Rows of x in the order of a routing's places, for expert products with many rows per tile.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul/matmul_layout.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPieces = 2;  // of 16 bytes, that a thread holds

/// A block reads one row once and writes it to the places of all its choices.
__global__ void __launch_bounds__(kThreads) GatherKernel(const GatherPairs gather) {
  // In this order, so that the products may read the routing as soon as they start.
  WaitForPriorGrid();
  LaunchDependents();
  const int first_pair = static_cast<int>(blockIdx.x) * gather.choices;
  if (first_pair >= *gather.num_pairs) return;
  const auto* const from = static_cast<const uint8_t*>(gather.x) + blockIdx.x * gather.x_stride * 2;
  // Rows of to have room for whole pieces of 16 bytes; so have those of x, whose stride is as much.
  const int bytes = gather.k * 2;
  constexpr int kStep = kThreads * 16;
  for (int begin = static_cast<int>(threadIdx.x) * 16; begin < bytes; begin += kPieces * kStep) {
    uint4 held[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = begin + i * kStep;
      if (at < bytes) held[i] = *reinterpret_cast<const uint4*>(from + at);
    }
    for (int choice = 0; choice < gather.choices; ++choice) {
      auto* const to = static_cast<uint8_t*>(gather.to) +
                       gather.places[first_pair + choice] * gather.to_stride * 2;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int at = begin + i * kStep;
        if (at < bytes) *reinterpret_cast<uint4*>(to + at) = held[i];
      }
    }
  }
}

}  // namespace

cudaError_t LaunchGatherPairs(const GatherPairs& gather, cudaStream_t stream) {
  return LaunchDependent(GatherKernel, dim3(gather.max_rows), dim3(kThreads), 0, stream, gather);
}

}  // namespace outrider::cuda
