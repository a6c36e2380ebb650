// What rows of a block of 16 tokens have to do with each other before the state comes in: products
// of decays, and sums over a head's key channels. A block of 128 threads has the head, a thread a
// channel. One code where rows run in the pass over the states and where they run before it.
#pragma once

#include "outrider/kernels/cuda/kda/kda_attention.h"

namespace outrider::cuda {

inline constexpr int kKdaThreads = 128;
inline constexpr int kKdaWarps = kKdaThreads / 32;
static_assert(kKdaThreads == kKdaDim && kStateBlock == 16);

/// Whether the block of tokens from `start` on is of a request of many rows, and all its rows run
/// in the step: KdaTokenBlocksKernel computes its KdaTokenBlock.
__device__ __forceinline__ bool IsWhole(const KdaRequest& request, int start) {
  return request.num_rows > kKdaFewRows && start >= request.context &&
         start + kStateBlock <= request.context + request.num_rows;
}

/// Whether no row of a whole block is kept: the kernel then leaves products of decays in the rows'
/// places too.
__device__ __forceinline__ bool KeepsNoRow(const KdaRequest& request, int start) {
  return start + kStateBlock + kKeptStateRows <= request.context + request.num_rows;
}

/// Of a request's whole blocks, by the row that the block begins with: two begin 16 rows apart.
__device__ __forceinline__ int64_t NumberOfWhole(int64_t first_row, int heads, int head) {
  return first_row / kStateBlock * heads + head;
}

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

/// The thread's channel, from row to row.
struct KdaDecays {
  float keys[kStateBlock] = {};  // K_tj of the row t that is at hand
  float product = 1.0F;          // P_t

  /// Row t, the next one.
  __device__ __forceinline__ void Take(int t, float k, float decay) {
    product = __fmul_rn(product, decay);
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) keys[j] = j == t ? k : __fmul_rn(keys[j], decay);
  }

  /// The warp's part of the row's sum that the lane has: k_t . K_tj in lanes j, q_t . K_tj in 16 +
  /// j.
  __device__ __forceinline__ float Part(float k, float q, int lane) const {
    float x[2 * kStateBlock];
#pragma unroll
    for (int j = 0; j < kStateBlock; ++j) {
      x[j] = __fmul_rn(k, keys[j]);
      x[kStateBlock + j] = __fmul_rn(q, keys[j]);
    }
    ScatterSums<2 * kStateBlock, 16, 1>(x, lane);
    return x[0];
  }
};

/// Of sums: what each warp has in its lanes.
using KdaParts = float[kKdaWarps][32];

/// Sum i.
__device__ __forceinline__ float AddWarps(const KdaParts& parts, int i) {
  return __fadd_rn(__fadd_rn(parts[0][i], parts[1][i]), __fadd_rn(parts[2][i], parts[3][i]));
}

/// The sums of rows [first, rows).
__device__ __forceinline__ void AddParts(const KdaParts (&parts)[kStateBlock], int first, int rows,
                                         int thread, KdaTokenBlock& sums) {
  for (int i = first * 2 * kStateBlock + thread; i < rows * 2 * kStateBlock; i += kKdaThreads) {
    const int t = i / (2 * kStateBlock);
    const int j = i % (2 * kStateBlock);
    const float sum = AddWarps(parts[t], j);
    if (j < kStateBlock) {
      sums.keys[t][j] = sum;
    } else {
      sums.queries[t][j - kStateBlock] = sum;
    }
  }
}

}  // namespace outrider::cuda
