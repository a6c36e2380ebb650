// What the roles of the swap-AB MLA decode body share: the layout of shared memory and the order in
// which an item's tiles pass through the ring. mla_decode_swap_ab.cuh tells the algorithm.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_block.cuh"

namespace outrider::cuda {

struct MlaSwapAbMaps {
  CUtensorMap
      latent;  // box 128 bytes, 8 keys, 4 column groups, min(page, 64) / 8; 128-byte swizzle
  CUtensorMap rotary;  // box 64 bytes, 8 keys, 1, min(page, 64) / 8; 64-byte swizzle
  const __nv_bfloat16* q;
};

inline constexpr int kSwapAbRows = 32;      // of a tile, at most
inline constexpr int kSwapAbConsumers = 2;  // warpgroups
inline constexpr int kSwapAbThreads = 128 * (kSwapAbConsumers + 1);
inline constexpr uint32_t kLatentBytes = kMlaTileKeys * kMlaValueDim;
inline constexpr uint32_t kSwapAbRotaryBytes = kMlaTileKeys * (kMlaKeyDim - kMlaValueDim);
inline constexpr uint32_t kSwapAbStageBytes = kLatentBytes + kSwapAbRotaryBytes;
inline constexpr uint32_t kQGroupBytes = 9 * kGroupBytes;  // 8 rows of queries in f16

/// `kRows` is 16 or 32; what the smaller one saves goes into the ring.
template <int kRows>
struct MlaSwapAbShared {
  static constexpr int kStages = kRows == 16 ? 4 : 3;
  // latent [8 key groups][4][8 keys x 128 bytes], rotary [8 key groups][8 keys x 64 bytes]
  alignas(1024) uint8_t kv[kStages][kSwapAbStageBytes];
  alignas(1024) uint8_t q[kRows / 8 * kQGroupBytes];  // [4 row groups][9][1024]
  // per warpgroup, [4 row groups][8 rows x 64 keys]
  alignas(1024) uint8_t p[kSwapAbConsumers][kRows * kMlaTileKeys * 2];
  float4 running[kRows][128];      // the folded splits, in the order of a thread's registers
  float2 running_stats[2][kRows];  // by split parity: reference (log2 domain) and sum
  alignas(16) float top[kSwapAbConsumers][kRows][4];  // by warp
  // of the current split: references, a copy per warp; sums of each thread's keys
  float reference[kSwapAbConsumers][4][kRows];
  float lane_sum[kRows / 4][128 * kSwapAbConsumers];
  float row_scale[kRows];  // scores to log2 domain
  MlaItem item[2];
  // By consumer: one that waited for the other's tiles too could be a phase behind or ahead.
  uint64_t kv_full[kSwapAbConsumers][kStages];
  uint64_t kv_empty[kStages];
  uint64_t turn[kSwapAbConsumers];  // to fold: by the other consumer
  uint64_t q_full;
  uint64_t item_full[2];
  uint64_t item_empty[2];
};

// Named barriers: both consumers; either consumer (+ its number).
inline constexpr int kConsumersBarrier = 1;
inline constexpr int kConsumerBarrier = 2;

/// An item's splits, two at a time: warpgroup 0 takes the first, warpgroup 1 the second. Their
/// tiles alternate in the ring while both have some.
struct SplitPair {
  int begin[2];
  int end[2];
  int tiles[2];
  int index = 0;  // of the first split in the item

  __device__ SplitPair(const MlaItem& item, const MlaSplits& splits) {
    Set(item, splits, item.key_begin);
  }
  __device__ bool Done(const MlaItem& item) const { return begin[0] >= item.key_end; }
  __device__ void Advance(const MlaItem& item, const MlaSplits& splits) {
    index += 2;
    Set(item, splits, end[1]);
  }
  /// Where tile `tile` of warpgroup `group` comes among the pair's tiles.
  __device__ int Position(int group, int tile) const {
    return group == 0 ? tile + min(tile, tiles[1]) : tile + min(tile + 1, tiles[0]);
  }

 private:
  __device__ void Set(const MlaItem& item, const MlaSplits& splits, int from) {
    int at = from;
    for (int i = 0; i < 2; ++i) {
      begin[i] = at;
      if (at < item.key_end) at = min(item.key_end, Boundary(item, splits, at));
      end[i] = at;
      tiles[i] = (at - begin[i] + kMlaTileKeys - 1) / kMlaTileKeys;
    }
  }
  /// The end of the split that begins at `key`. Relaxed items are halved.
  static __device__ int Boundary(const MlaItem& item, const MlaSplits& splits, int key) {
    if (splits.base != 0) return NextSplit(splits, key);
    if (key > item.key_begin) return item.key_end;
    const int tiles = (item.key_end - key + kMlaTileKeys - 1) / kMlaTileKeys;
    return key + (tiles + 1) / 2 * kMlaTileKeys;
  }
};

template <typename Shared>
__device__ __forceinline__ MlaItem TakeSwapAbItem(Shared& shared, uint32_t item_count) {
  const int slot = item_count & 1;
  BarrierWait(&shared.item_full[slot], (item_count >> 1) & 1);
  const MlaItem item = shared.item[slot];
  BarrierArriveWarp(&shared.item_empty[slot]);
  return item;
}

}  // namespace outrider::cuda
