// Pieces of running states and of kept rows in the pages of the cache.
#pragma once

#include "outrider/kernels/cuda/kda/kda_step.h"

namespace outrider::cuda {

/// Where the kNumbers floats of `head` begin. Heads are counted over all layers.
template <int kNumbers>
__device__ __forceinline__ float* PieceOf(const KdaMemory& memory, const int32_t* pages, int head) {
  constexpr int64_t kBytes = int64_t{kNumbers} * int64_t{sizeof(float)};
  const int in_page = static_cast<int>(memory.page_bytes / kBytes);
  return reinterpret_cast<float*>(memory.data + pages[head / in_page] * memory.page_bytes +
                                  head % in_page * kBytes);
}

/// The state of a head [D, D], in the order of KdaStatePlace, then the rows [3, 3 D] before its
/// place.
__device__ __forceinline__ float* StatePiece(const KdaMemory& memory, const int32_t* pages,
                                             int head) {
  return PieceOf<kKdaStateNumbers>(memory, pages, head);
}

/// Kept rows of a head [kKeptStateRows, 6 D].
__device__ __forceinline__ float* RowPiece(const KdaMemory& memory, const int32_t* pages,
                                           int head) {
  return PieceOf<kKdaRowNumbers>(memory, pages, head);
}

/// The kept row of a position: query, key and value before the convolution, the finished key,
/// decays, what the row adds to the state along the key. Number: float, or const float.
template <typename Number>
__device__ __forceinline__ Number* KeptRow(Number* rows, int position) {
  return rows + position % kKeptStateRows * (6 * kKdaDim);
}

}  // namespace outrider::cuda
