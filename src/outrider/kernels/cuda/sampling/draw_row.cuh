// A row of logits in the shared memory of a cluster, and what all its threads find out together:
// maxima, sums, and the token at which an amount is reached.
//
// Every block has a slice of the vocabulary. Whatever is added is an integer or is added in a fixed
// order, so results depend on nothing but the row.
#pragma once

#include <cstdint>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/hopper/order_key.cuh"

namespace outrider::cuda {

inline constexpr int kDrawBlocks = 8;  // of a cluster
inline constexpr int kDrawThreads = 512;
inline constexpr int kDrawWarps = kDrawThreads / 32;
inline constexpr int kDrawBins = 256;
inline constexpr int kDrawSums = 6;           // of one exchange
inline constexpr int kDrawCandidates = 4096;  // that a block lists
inline constexpr int kDrawRanked = 256;       // that a cluster ranks one by one

/// Fixed shared memory of a block. What other blocks read is there twice: a value is overwritten
/// two exchanges later, when all have passed the barrier of the exchange in between.
struct DrawShared {
  uint64_t warp_values[2][kDrawSums][kDrawWarps];
  double warp_sums[2][kDrawWarps];
  unsigned long long amounts[2][kDrawBins];
  uint32_t counts[2][kDrawBins];
  // Amounts of all blocks: by bin; or of tokens that are ranked.
  uint64_t total_amounts[kDrawBins];
  uint32_t total_counts[kDrawBins];
  uint64_t ranked_keys[kDrawRanked];
  uint64_t bound;
  int bin;
  uint64_t left;
  bool exact;
  bool draft_is_listed[kDrawThreads];  // among the tokens that occurred
  int num_listed;
  uint64_t listed[128];  // keys of the most likely tokens
  int num_candidates;
  alignas(4) uint16_t candidates[kDrawCandidates];
};

__device__ __forceinline__ uint32_t DrawRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void DrawClusterSync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ uint32_t RemoteAddress(const void* local, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(SharedAddress(local)), "r"(rank));
  return address;
}
__device__ __forceinline__ uint64_t LoadRemote64(const void* local, uint32_t rank) {
  uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];"
               : "=l"(value)
               : "r"(RemoteAddress(local, rank))
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t LoadRemote32(const void* local, uint32_t rank) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(value)
               : "r"(RemoteAddress(local, rank))
               : "memory");
  return value;
}

inline constexpr uint32_t kMinusInfinityKey = 0x007FFFFF;  // OrderKey(-infinity)
inline constexpr uint32_t kInfinityKey = 0xFF800000;

__device__ __forceinline__ bool IsFiniteKey(uint64_t token_key) {
  const auto key = static_cast<uint32_t>(token_key >> 32);
  return key > kMinusInfinityKey && key < kInfinityKey;
}

struct MaxOf {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};
struct SumOf {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

class DrawRow {
 public:
  /// `values`: this block's slice in shared memory, of `slice` places, a multiple of 32.
  __device__ DrawRow(DrawShared& shared, float* values, int slice, int vocab_size)
      : shared_(shared),
        values_(values),
        slice_(slice),
        rank_(DrawRank()),
        first_(static_cast<int>(rank_) * slice),
        count_(max(0, min(slice, vocab_size - first_))) {}

  __device__ uint32_t rank() const { return rank_; }
  __device__ int first() const { return first_; }  // token of the slice
  __device__ int count() const { return count_; }  // tokens of the slice

  /// Where token first() + i lies. Groups of 32 are turned by 8, 16, 24 against each other, so that
  /// the tokens of four groups whose noise comes from one call of Philox lie in different banks.
  __device__ static int Place(int i) { return (i & ~31) | ((i + (i >> 5 & 3) * 8) & 31); }
  __device__ float& at(int i) { return values_[Place(i)]; }

  /// body(i, token, value) for this thread's tokens of the slice, in rising order.
  template <typename Body>
  __device__ __forceinline__ void ForTokens(Body body) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kDrawThreads) {
      body(i, first_ + i, values_[Place(i)]);
    }
  }

  /// Lists the tokens that wanted(token, value) is true of, if they are few enough: ForCandidates
  /// then passes those alone. All threads.
  template <typename Wanted>
  __device__ __forceinline__ void List(Wanted wanted) {
    if (threadIdx.x == 0) shared_.num_candidates = 0;
    __syncthreads();
    ForTokens([&](int i, int token, float value) {
      if (!wanted(token, value)) return;
      const int place = atomicAdd(&shared_.num_candidates, 1);
      if (place < kDrawCandidates) shared_.candidates[place] = static_cast<uint16_t>(i);
    });
    __syncthreads();
    listed_ = shared_.num_candidates <= kDrawCandidates;
  }
  /// body(i, token, value): the listed tokens, in no order, or all where more were wanted.
  template <typename Body>
  __device__ __forceinline__ void ForCandidates(Body body) {
    if (!listed_) {
      ForTokens(body);
      return;
    }
    for (int place = static_cast<int>(threadIdx.x); place < shared_.num_candidates;
         place += kDrawThreads) {
      const int i = shared_.candidates[place];
      body(i, first_ + i, values_[Place(i)]);
    }
  }
  __device__ bool listed() const { return listed_; }

  /// Over all threads of the cluster, in every one of them.
  __device__ uint64_t Max(uint64_t value) {
    uint64_t values[1] = {value};
    Reduce(values, MaxOf());
    return values[0];
  }
  template <int kCount>
  __device__ void Sum(uint64_t (&values)[kCount]) {
    Reduce(values, SumOf());
  }
  /// In a fixed order.
  __device__ double Sum(double value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    double(&slots)[kDrawWarps] = shared_.warp_sums[Turn()];
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    DrawClusterSync();
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kValuesPerLane; ++i) {
      const int index = static_cast<int>(threadIdx.x % 32) + i * 32;
      sum += __longlong_as_double(static_cast<long long>(
          LoadRemote64(&slots[index % kDrawWarps], static_cast<uint32_t>(index / kDrawWarps))));
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    return sum;
  }

  /// The least class up to which there are `needed` or more of the classes that all threads of the
  /// cluster name, kDrawBins for none; the last class where there are fewer.
  __device__ int ClassOfCount(int named, uint64_t needed) {
    const int turn = ClearBins();
    if (named < kDrawBins) Add(turn, named, 1);
    return FindBin(turn, needed) ? shared_.bin : kDrawBins - 1;
  }

  /// The smallest bound such that the tokens with a key of at least it have an amount of `needed`
  /// or more, each of them counted by amount_of(token, value), 0 for those that are out; 0 where
  /// all together have less. A list, if there is one, holds all that count, up to the bound at
  /// least. `coarse` is a first cut of the tokens in kDrawBins classes, 0 the largest values.
  /// needed >= 1. All threads of the cluster.
  template <typename Amount, typename Coarse>
  __device__ uint64_t FindBound(uint64_t needed, Amount amount_of, Coarse coarse) {
    uint64_t listed[1] = {static_cast<uint64_t>(listed_ ? shared_.num_candidates : count_)};
    if (!listed_) listed[0] += kDrawRanked;  // too many, whatever the others have
    Sum(listed);
    if (listed[0] <= kDrawRanked) {
      return RankBound(needed, static_cast<int>(listed[0]), amount_of);
    }
    // Classes first: neighbouring floats lie too close together in their bits.
    int turn = ClearBins();
    ForCandidates([&](int, int token, float value) {
      const uint64_t amount = amount_of(token, value);
      if (amount != 0) Add(turn, coarse(value), amount);
    });
    if (!FindBin(turn, needed)) return 0;
    const int chosen = shared_.bin;
    needed = shared_.left;
    // The keys of that class.
    uint64_t low = ~uint64_t{0};
    uint64_t high = 0;
    ForCandidates([&](int, int token, float value) {
      if (amount_of(token, value) == 0 || coarse(value) != chosen) return;
      const uint64_t key = TokenKey(value, token);
      low = min(low, key);
      high = max(high, key);
    });
    low = ~Max(~low);
    high = Max(high);
    while (!shared_.exact && low < high) {
      const int bits = 64 - __clzll(static_cast<long long>(high - low));
      const int shift = max(0, bits - 8);
      turn = ClearBins();
      ForCandidates([&](int, int token, float value) {
        const uint64_t key = TokenKey(value, token);
        if (key < low || key > high) return;
        const uint64_t amount = amount_of(token, value);
        // Bin 0 is the largest, as for classes.
        if (amount != 0) {
          Add(turn, kDrawBins - 1 - static_cast<int>((key - low) >> shift), amount);
        }
      });
      FindBin(turn, needed);
      needed = shared_.left;
      low += static_cast<uint64_t>(kDrawBins - 1 - shared_.bin) << shift;
      high = min(high, low + ((uint64_t{1} << shift) - 1));
    }
    __syncthreads();  // all have read what the last search left
    return low;
  }

 private:
  static constexpr int kValuesPerLane = kDrawBlocks * kDrawWarps / 32;
  static_assert(kDrawBlocks * kDrawWarps % 32 == 0);

  __device__ int Turn() { return turn_ ^= 1; }

  /// FindBound for `count` listed tokens of all blocks, at most kDrawRanked: every block collects
  /// them and adds up what is no smaller than each.
  template <typename Amount>
  __device__ uint64_t RankBound(uint64_t needed, int count, Amount amount_of) {
    static_assert(kDrawRanked <= kDrawBins && kDrawRanked <= kDrawThreads);
    const int thread = static_cast<int>(threadIdx.x);
    uint64_t key = 0;
    uint64_t amount = 0;
    if (thread < count) {
      int place = thread;
      uint32_t block = 0;
      for (;; ++block) {
        const int listed = static_cast<int>(LoadRemote32(&shared_.num_candidates, block));
        if (place < listed) break;
        place -= listed;
      }
      // Two neighbouring entries are one word.
      const uint32_t pair = LoadRemote32(&shared_.candidates[place & ~1], block);
      const int i = static_cast<int>(pair >> place % 2 * 16 & 0xFFFF);
      const float value = __uint_as_float(LoadRemote32(&values_[Place(i)], block));
      const int token = static_cast<int>(block) * slice_ + i;
      key = TokenKey(value, token);
      amount = amount_of(token, value);
      shared_.ranked_keys[thread] = key;
      shared_.total_amounts[thread] = amount;
    }
    if (thread == 0) shared_.bound = 0;
    DrawClusterSync();  // and nobody reads another's list any more
    if (thread < count) {
      uint64_t sum = 0;
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        sum += shared_.ranked_keys[i] >= key ? shared_.total_amounts[i] : 0;
      }
      if (sum >= needed && sum - amount < needed) shared_.bound = key;
    }
    __syncthreads();
    return shared_.bound;
  }

  template <int kCount, typename Operation>
  __device__ __forceinline__ void Reduce(uint64_t (&values)[kCount], Operation operation) {
    static_assert(kCount <= kDrawSums);
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint64_t(&slots)[kDrawSums][kDrawWarps] = shared_.warp_values[Turn()];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
        values[n] = operation(values[n], __shfl_xor_sync(~0u, values[n], mask));
      }
      if (lane == 0) slots[n][threadIdx.x / 32] = values[n];
    }
    DrawClusterSync();
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      uint64_t parts[kValuesPerLane];
#pragma unroll
      for (int i = 0; i < kValuesPerLane; ++i) {
        const int index = lane + i * 32;
        parts[i] =
            LoadRemote64(&slots[n][index % kDrawWarps], static_cast<uint32_t>(index / kDrawWarps));
      }
      values[n] = parts[0];
#pragma unroll
      for (int i = 1; i < kValuesPerLane; ++i) values[n] = operation(values[n], parts[i]);
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
        values[n] = operation(values[n], __shfl_xor_sync(~0u, values[n], mask));
      }
    }
  }

  __device__ int ClearBins() {
    const int turn = Turn();
    for (int i = static_cast<int>(threadIdx.x); i < kDrawBins; i += kDrawThreads) {
      shared_.amounts[turn][i] = 0;
      shared_.counts[turn][i] = 0;
    }
    __syncthreads();
    return turn;
  }
  __device__ __forceinline__ void Add(int turn, int bin, uint64_t amount) {
    atomicAdd(&shared_.amounts[turn][bin], static_cast<unsigned long long>(amount));
    atomicAdd(&shared_.counts[turn][bin], 1u);
  }

  /// The first bin at whose end `needed` is reached, to shared_.bin; what is needed of it, to
  /// shared_.left; whether all of it is needed or it is one token, to shared_.exact. False: not
  /// reached.
  __device__ bool FindBin(int turn, uint64_t needed) {
    DrawClusterSync();
    for (int i = static_cast<int>(threadIdx.x); i < kDrawBins; i += kDrawThreads) {
      uint64_t amount = 0;
      uint32_t count = 0;
#pragma unroll
      for (uint32_t block = 0; block < kDrawBlocks; ++block) {
        amount += LoadRemote64(&shared_.amounts[turn][i], block);
        count += LoadRemote32(&shared_.counts[turn][i], block);
      }
      shared_.total_amounts[i] = amount;
      shared_.total_counts[i] = count;
    }
    if (threadIdx.x == 0) shared_.bin = -1;
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr int kPerLane = kDrawBins / 32;
      const int first = static_cast<int>(threadIdx.x) * kPerLane;
      uint64_t sum = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sum += shared_.total_amounts[first + i];
      uint64_t before = sum;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t left = __shfl_up_sync(~0u, before, step);
        if (static_cast<int>(threadIdx.x) >= step) before += left;
      }
      before -= sum;
      if (before < needed && before + sum >= needed) {
        int i = first;
        while (before + shared_.total_amounts[i] < needed) before += shared_.total_amounts[i++];
        shared_.bin = i;
        shared_.left = needed - before;
        shared_.exact = shared_.total_counts[i] == 1 || shared_.total_amounts[i] == needed - before;
      }
    }
    __syncthreads();
    return shared_.bin >= 0;
  }

  DrawShared& shared_;
  float* values_;
  const int slice_;
  const uint32_t rank_;
  const int first_;
  const int count_;
  int turn_ = 0;
  bool listed_ = false;
};

}  // namespace outrider::cuda
