// Blocks of a cluster: who one is, the barrier among them, reads of each other's shared memory.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"

namespace outrider::cuda {

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/// What block `rank` has at the place of `local` in this block.
__device__ __forceinline__ float LoadRemote(const float* local, uint32_t rank) {
  uint32_t address;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(SharedAddress(local)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ int LoadRemote(const int* local, uint32_t rank) {
  return __float_as_int(LoadRemote(reinterpret_cast<const float*>(local), rank));
}

}  // namespace outrider::cuda
