// How a block of listed attention gathers entries of e4m3 codes: into the places of the bf16
// numbers that they are widened to, in place.
//
// A lane copies 16 codes to one of the two chunks of 16 bytes that they become, and widens them
// itself when its copies have landed: nobody else touches these 32 bytes, and it waits for no other
// lane. The tensor cores see bf16 entries in the places where GatherEntries puts them.
#pragma once

#include "outrider/kernels/cuda/hopper/widen_codes.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention_walk.cuh"

namespace outrider::cuda {

/// Ends a group of this thread's copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until no more than the youngest kGroups groups of this thread's copies are under way.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Widens 8 of 16 codes to the chunk at `to`.
__device__ __forceinline__ void StoreWidened(uint32_t to, uint32_t low, uint32_t high) {
  const uint2 a = WidenFourCodes(low);
  const uint2 b = WidenFourCodes(high);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a.x), "r"(a.y), "r"(b.x),
               "r"(b.y)
               : "memory");
}

/// Widens the 16 codes at `at` to that chunk and the other of its pair, `at` ^ 16. `second`: at
/// `at` lies the chunk of the last 8 codes.
__device__ __forceinline__ void WidenInPlace(uint32_t at, bool second) {
  uint4 codes;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
               : "r"(at)
               : "memory");
  StoreWidened(at, second ? codes.z : codes.x, second ? codes.w : codes.y);
  StoreWidened(at ^ 16, second ? codes.x : codes.z, second ? codes.y : codes.w);
}

/// As GatherEntries, of codes. Of a part of 256 columns half a warp copies an entry with one
/// instruction.
template <typename Form>
__device__ __forceinline__ void GatherCodes(const typename Form::Arguments& args,
                                            ListedShared<Form>& shared) {
  constexpr bool kHasRotary = ListedShared<Form>::kHasRotary;
  constexpr uint32_t kStageStride = ListedShared<Form>::kTileBytes;
  constexpr uint32_t kHalfStride = 16 * kGroupBytes;
  constexpr uint32_t kTwoRows = 2 * 144;  // two rows on, and their swizzle
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % kGatherThreads / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 16;              // entries row, row + 2, row + 4, row + 6 of the warp's
  const bool second = lane / 4 % 2 != 0;  // where codes wait: so that eight lanes meet in no bank
  const uint32_t in_stage = SharedAddress(shared.kv) + warp * 4 * kGroupBytes +
                            lane % 16 / 4 * kGroupBytes + row * 128 +
                            (((lane % 4 * 2) ^ row) * 16 ^ (second ? 16 : 0));
  const int rotary_row = lane / 4;
  const uint32_t rotary_in_stage = SharedAddress(shared.kv) + 2 * kHalfBytes + warp * kGroupBytes +
                                   rotary_row * 128 + ((lane % 4 * 2) ^ rotary_row) * 16;
  const int in_part = lane % 16 * 16;
#pragma unroll 1
  for (uint32_t tile = 0;; ++tile) {
    const uint32_t stage = tile % kStages;
    const uint32_t to = in_stage + stage * kStageStride;
    const uint32_t rotary = rotary_in_stage + stage * kStageStride;
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
      BarrierWait(&shared.kv_free[stage][half], (tile / kStages & 1) ^ 1);
      if (shared.offsets[stage][0] == kNoTile) return;
      const uint32_t* const offsets = shared.offsets[stage] + 32 * half + 8 * warp;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t at = to + half * kHalfStride + part * kHalfBytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          CopyOrZero<Form>(at ^ (i * kTwoRows), args, in_part + part * 256, offsets[2 * i + row]);
        }
        if (kHasRotary && part == 1) {
          CopyOrZero<Form>(rotary + half * 4 * kGroupBytes, args, kMlaValueDim + lane % 4 * 16,
                           offsets[rotary_row]);
        }
        CommitCopies();
      }
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // The copies in order: half 0 part 0, half 0 part 1, half 1 part 0, half 1 part 1.
        if (part == 0) {
          if (half == 0) {
            WaitForCopies<3>();
          } else {
            WaitForCopies<1>();
          }
        } else if (half == 1) {
          WaitForCopies<0>();
        }
        const uint32_t at = to + half * kHalfStride + part * kHalfBytes;
#pragma unroll 2
        for (int i = 0; i < 4; ++i) WidenInPlace(at ^ (i * kTwoRows), second);
        if (kHasRotary && part == 1) WidenInPlace(rotary + half * 4 * kGroupBytes, false);
      }
      ProxyFence();
      BarrierArrive(&shared.kv_full[stage][part]);
    }
  }
}

}  // namespace outrider::cuda
