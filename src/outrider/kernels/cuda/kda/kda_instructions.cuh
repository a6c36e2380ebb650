// PTX of the pass of Kimi Delta Attention: copies of rows into shared memory, products on tensor
// cores.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"

namespace outrider::cuda {

__device__ __forceinline__ void CopySixteenBytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// d += a b, by a warp: a [16, 8] and b [8, 8] of TF32. With g = lane / 4 and i = lane % 4 a lane
/// has of a (g, i), (g + 8, i), (g, i + 4), (g + 8, i + 4), of b (i, g), (i + 4, g), and of d
/// (g, 2 i), (g, 2 i + 1), (g + 8, 2 i), (g + 8, 2 i + 1). A number of d depends on its row of a
/// and its column of b alone.
__device__ __forceinline__ void MultiplyTf32(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// As FreshThread, of blockIdx.x.
__device__ __forceinline__ uint32_t FreshBlock() {
  uint32_t block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

/// x. What is computed of it is not moved out of a loop, where it would take registers.
__device__ __forceinline__ float Here(float x) {
  float y;
  asm volatile("mov.b32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace outrider::cuda
