// The ring of stages of the matrix products as a warpgroup that multiplies goes through it.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/matmul/matmul_layout.h"

namespace outrider::cuda {

/// The ring of stages as a consumer goes through it.
template <typename Body>
struct StageCursor {
  int stage = 0;
  uint32_t phase = 0;
  int shares = 1;      // blocks that load rows of x for each other,
  int first_rank = 0;  // and the first of them in the cluster

  /// This warp has read the stage: all blocks that load into it may do so again.
  __device__ __forceinline__ void Release(typename Body::Shared& shared, int read) const {
    if (!Body::kMayShare || shares == 1) {
      BarrierArriveWarp(&shared.empty[read]);
      return;
    }
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int arrival = lane; arrival < shares * kWarpArrivals; arrival += 32) {
      // Nothing was written that the others read; a release in the cluster would wait for all that
      // this thread has stored anywhere.
      asm volatile(
          "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
          "mbarrier.arrive.shared::cluster.b64 _, [at];\n}\n" ::"r"(
              SharedAddress(&shared.empty[read])),
          "r"(first_rank + arrival / kWarpArrivals)
          : "memory");
    }
  }
  __device__ __forceinline__ void Next() {
    if (++stage == Body::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// Descriptors of the rows of x in a stage, with wgmma's swizzle. A number that a warp reads from
/// one lane is in a uniform register, and so is what constants are added to it: wgmma takes
/// descriptors from there, and else each would be added up by every thread first.
class StageRows {
 public:
  __device__ __forceinline__ StageRows(const uint8_t* first_stage, int offset)
      : first_(MakeDescriptor(SharedAddress(first_stage), 16, 1024)),
        low_(__shfl_sync(~0u, static_cast<uint32_t>(first_) + (offset >> 4), 0)) {}

  /// `bytes` further on.
  __device__ __forceinline__ uint64_t At(uint32_t bytes) const {
    return first_ >> 32 << 32 | (low_ + (bytes >> 4));
  }

 private:
  uint64_t first_;  // whose upper half is a constant
  uint32_t low_;
};

}  // namespace outrider::cuda
