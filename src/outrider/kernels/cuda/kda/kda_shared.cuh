// What the threads of a block share in the pass of Kimi Delta Attention, and sums over lanes.
#pragma once

#include "outrider/kernels/cuda/kda/kda_finish_row.cuh"

namespace outrider::cuda {

inline constexpr int kKdaThreads = 128;
inline constexpr int kKdaWarps = kKdaThreads / 32;
static_assert(kKdaThreads == kKdaDim && kStateBlock == 16);

/// Rows of a block of tokens. Lanes that touch 8 neighbouring floats of each of 4 rows meet all 32
/// banks.
using KdaTile = float[kStateBlock][kKdaDim + 8];

/// The request of a block of threads.
struct KdaBlock {
  KdaRequest request;
  int end;        // position behind the last row
  int state_end;  // tokens of the state that the step leaves
  // Of the head's kept rows, in floats from the start of the cache's memory. A pointer that shared
  // memory holds would be of any memory.
  int64_t kept;
};

struct KdaShared {
  // Of two blocks of tokens in turn.
  alignas(16) KdaTile k[2];                              // then k P
  alignas(16) KdaTile q[2];                              // then q P
  alignas(16) KdaTile decay[2];                          // then, of a whole block, K_15
  alignas(16) KdaTile value[2];                          // v, then u
  alignas(16) KdaTile of_key;                            // S^T (k P)
  alignas(16) KdaTile of_query;                          // S^T (q P)
  alignas(16) float product[kKdaDim];                    // P_15
  float write[kStateBlock];                              // b
  float parts[kStateBlock][kKdaWarps][2 * kStateBlock];  // of the sums below, by warp
  alignas(16) float keys[kStateBlock][kStateBlock];      // k_t . K_tj
  alignas(16) float queries[kStateBlock][kStateBlock];   // q_t . K_tj
  KdaLengths lengths;
  KdaBlock block;
};
// Two blocks run on a multiprocessor.
static_assert(2 * (sizeof(KdaShared) + 1024) <= 196 * 1024);

/// Sums of kCount values over the lanes that differ in the bits of kCount / 2 .. kLeast, all in one
/// order: x[0 .. kLeast) of a lane become the sums of the values that these bits of it number.
template <int kCount, int kMask, int kLeast>
__device__ __forceinline__ void ScatterSums(float* x, int lane) {
  if constexpr (kCount > kLeast) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane & kMask) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = upper ? x[i] : x[i + kHalf];
      const float kept = upper ? x[i + kHalf] : x[i];
      x[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, sent, kMask));
    }
    ScatterSums<kHalf, kMask / 2, kLeast>(x, lane);
  }
}

}  // namespace outrider::cuda
