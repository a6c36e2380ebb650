// A row's choice, by one block.
//
// The top_k-th largest key (OrderKey of a score) is found by its digits from the highest: a
// histogram of a digit of the keys that share the digits above says in which of its bins the bound
// lies. Digits are of 11 bits of the distance from the row's smallest key, so that rows whose
// scores are close together have full histograms too. Then every warp takes a run of the row,
// counts what is above the bound and what equals it, and writes its part of the list behind those
// of the warps before: all above the bound, and of those that equal it the first that are wanted.
//
// The keys stay in shared memory where they have room; of longer rows every pass reads the scores.
#pragma once

#include "outrider/base/token_order.h"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/sparse/choose_entries.h"

namespace outrider::cuda {

inline constexpr int kChoiceThreads = 1024;
inline constexpr int kChoiceWarps = kChoiceThreads / 32;
inline constexpr int kChoiceDigit = 11;
inline constexpr int kChoiceBins = 1 << kChoiceDigit;
inline constexpr int kMaxSharedKeys = 48 * 1024;

struct ChoiceShared {
  int histogram[kChoiceBins];
  int warp_sums[kChoiceWarps];
  int warp_equal[kChoiceWarps];
  uint32_t smallest;
  uint32_t largest;
  int bin;    // where the bound is
  int above;  // keys in the bins above it
};

/// Keys in shared memory, or made from scores where they are wanted.
struct SharedKeys {
  const uint32_t* keys;
  __device__ __forceinline__ uint32_t operator()(int i) const { return keys[i]; }
};
struct ScoreKeys {
  const float* scores;
  __device__ __forceinline__ uint32_t operator()(int i) const { return OrderKey(scores[i]); }
};

/// The bin in which the `wanted`-th key from above is (shared.bin), and the keys above that bin.
/// All threads.
__device__ __forceinline__ void FindBin(ChoiceShared& shared, int wanted) {
  constexpr int kBins = kChoiceBins / kChoiceThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  // Thread 0 has the highest bins.
  const int first = kChoiceBins - (thread + 1) * kBins;
  int counts[kBins];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kBins; ++i) {
    counts[i] = shared.histogram[first + i];
    sum += counts[i];
  }
  int through = sum;  // keys in this thread's bins and above, within the warp
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += left;
  }
  if (lane == 31) shared.warp_sums[thread / 32] = through;
  __syncthreads();
  const int of_warp = shared.warp_sums[lane];
  through += __reduce_add_sync(~0u, lane < thread / 32 ? of_warp : 0);
  int above = through - sum;
  if (above < wanted && through >= wanted) {
#pragma unroll
    for (int i = kBins - 1; i >= 0; --i) {
      if (above + counts[i] >= wanted) {
        shared.bin = first + i;
        shared.above = above;
        break;
      }
      above += counts[i];
    }
  }
  __syncthreads();
}

/// What stands between the chosen and the others: keys above `key`, and the first `equal` of those
/// that equal it.
struct ChoiceBound {
  uint32_t key;
  int equal;
};

template <typename Keys>
__device__ __forceinline__ ChoiceBound FindChoiceBound(const Keys& keys, int visible, int top_k,
                                                       ChoiceShared& shared) {
  uint32_t low = shared.smallest;
  uint32_t last = shared.largest - low;  // of the distances from `low` that are still in question
  int wanted = top_k;
#pragma unroll 1
  while (last != 0) {
    const int shift = max(0, 32 - __clz(static_cast<int>(last)) - kChoiceDigit);
    for (int i = static_cast<int>(threadIdx.x); i < kChoiceBins; i += kChoiceThreads) {
      shared.histogram[i] = 0;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < visible; i += kChoiceThreads) {
      const uint32_t distance = keys(i) - low;  // of smaller keys: larger than `last`
      if (distance <= last) atomicAdd(&shared.histogram[distance >> shift], 1);
    }
    __syncthreads();
    FindBin(shared, wanted);
    wanted -= shared.above;
    low += static_cast<uint32_t>(shared.bin) << shift;
    last = (1u << shift) - 1;
  }
  return {low, wanted};
}

/// Writes the chosen entries' numbers, rising. A warp's run is `groups` times 32 keys.
template <typename Keys>
__device__ __forceinline__ void WriteChoice(const Keys& keys, int visible, ChoiceBound bound,
                                            ChoiceShared& shared, int32_t* list) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int groups = (visible + kChoiceThreads - 1) / kChoiceThreads;
  const int begin = warp * groups * 32;
  const int end = min(visible, begin + groups * 32);
  int larger = 0;
  int equal = 0;
  for (int i = begin + lane; i < end; i += 32) {
    const uint32_t key = keys(i);
    larger += key > bound.key ? 1 : 0;
    equal += key == bound.key ? 1 : 0;
  }
  larger = __reduce_add_sync(~0u, larger);
  equal = __reduce_add_sync(~0u, equal);
  if (lane == 0) {
    shared.warp_sums[warp] = larger;
    shared.warp_equal[warp] = equal;
  }
  __syncthreads();
  int larger_before = __reduce_add_sync(~0u, lane < warp ? shared.warp_sums[lane] : 0);
  int equal_before = __reduce_add_sync(~0u, lane < warp ? shared.warp_equal[lane] : 0);
  const uint32_t lanes_before = (1u << lane) - 1;
  for (int first = begin; first < end; first += 32) {
    const int i = first + lane;
    const uint32_t key = i < end ? keys(i) : 0;
    const bool is_larger = i < end && key > bound.key;
    const bool is_equal = i < end && key == bound.key;
    const uint32_t all_larger = __ballot_sync(~0u, is_larger);
    const uint32_t all_equal = __ballot_sync(~0u, is_equal);
    const int rank = equal_before + __popc(all_equal & lanes_before);
    if (is_larger || (is_equal && rank < bound.equal)) {
      list[larger_before + __popc(all_larger & lanes_before) + min(rank, bound.equal)] = i;
    }
    larger_before += __popc(all_larger);
    equal_before += __popc(all_equal);
  }
}

/// The row's smallest and largest key, in `shared`; its keys in `room`, unless that is null.
__device__ __forceinline__ void LoadChoiceKeys(const float* scores, int visible, uint32_t* room,
                                               ChoiceShared& shared) {
  if (threadIdx.x == 0) {
    shared.smallest = ~0u;
    shared.largest = 0;
  }
  __syncthreads();
  uint32_t smallest = ~0u;
  uint32_t largest = 0;
  const auto take = [&](int i, float score) {
    if (i >= visible) return;
    const uint32_t key = OrderKey(score);
    smallest = min(smallest, key);
    largest = max(largest, key);
    if (room != nullptr) room[i] = key;
  };
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * 4; i < visible; i += kChoiceThreads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(scores + i);
    take(i, four.x);
    take(i + 1, four.y);
    take(i + 2, four.z);
    take(i + 3, four.w);
  }
  smallest = __reduce_min_sync(~0u, smallest);
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&shared.smallest, smallest);
    atomicMax(&shared.largest, largest);
  }
  __syncthreads();
}

template <typename Keys>
__device__ __forceinline__ void ChooseAmong(const Keys& keys, int visible, int top_k,
                                            ChoiceShared& shared, int32_t* list) {
  const ChoiceBound bound = FindChoiceBound(keys, visible, top_k, shared);
  WriteChoice(keys, visible, bound, shared, list);
}

/// Row first_row + `index`. `room`: shared memory for `room_keys` keys.
__device__ __forceinline__ void ChooseRow(const ChooseEntriesParams& params, int index,
                                          uint32_t* room, int room_keys, ChoiceShared& shared) {
  const int row = params.first_row + index;
  const int visible = params.rows.visible[row];
  int32_t* list = params.lists + row * params.lists_stride;
  if (visible <= params.top_k) {
    for (int i = static_cast<int>(threadIdx.x); i < visible; i += kChoiceThreads) list[i] = i;
    return;
  }
  const float* scores = params.scores + index * params.scores_stride;
  const bool fits = visible <= room_keys;
  LoadChoiceKeys(scores, visible, fits ? room : nullptr, shared);
  if (fits) {
    ChooseAmong(SharedKeys{room}, visible, params.top_k, shared, list);
  } else {
    ChooseAmong(ScoreKeys{scores}, visible, params.top_k, shared, list);
  }
}

}  // namespace outrider::cuda
