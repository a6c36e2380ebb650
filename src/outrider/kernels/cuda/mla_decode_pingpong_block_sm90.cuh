// What the roles of the ping-pong body MLA decode body share: the layout of shared memory.
// mla_decode_pingpong_sm90.cuh tells the whole algorithm.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"

namespace outrider::cuda {

inline constexpr int kPingPongItems = 3;  // slots: as many as may be on their way
inline constexpr int kPingPongThreads =
    kMlaThreads;  // two warpgroups that multiply, one that copies
inline constexpr int kPingPongReaders =
    11;  // warps that read an item: all but the one that takes it

// Of a thread's 64 column pairs of the splits so far: those that registers have no room for.
inline constexpr int kKeptColumns = 7;

struct MlaPingPongShared {
  alignas(1024) uint8_t q[kQBytes];  // [8 row groups][9][1024]
  // Halves [8 row groups][4][1024], rotary [8][1024]; the latter's place is then that of the tile's
  // probabilities.
  alignas(1024) uint8_t kv[kStages][kStageBytes];
  uint32_t columns[kKeptColumns][kOutputThreads];
  // Handed from tile to tile: a row's reference in the split so far (references_full) and what its
  // sums were multiplied with, the sums of a thread's keys of its two rows (p_full). An alpha is
  // written again when the keys two tiles on are there, after the other warpgroup has freed these.
  float reference[kMlaTileRows];
  float alpha[2][kMlaTileRows];  // by tile parity
  float2 sum[kMlaTileRows * 2];
  // At a split's end, from the warpgroup that had its last tile (split_full), until both have
  // folded it (split_empty).
  MlaSplitNumbers split;
  MlaRowState state[kMlaTileRows];  // of the splits so far
  MlaItem item[kPingPongItems];
  int epoch;
  uint64_t kv_full[kStages][3];
  uint64_t kv_empty[kStages][2][2];  // by half of the columns, half of the keys
  uint64_t rotary_empty[kStages];    // the probabilities too
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t references_full;  // a tile's references; each tile waits for those before
  // A tile's probabilities, alphas and sums. A barrier per stage: where an item ends with a tile of
  // the warpgroup that begins the next one, it hands over two in a row.
  uint64_t p_full[kStages];
  uint64_t split_full;
  uint64_t split_empty;
  uint64_t item_full[kPingPongItems];
  uint64_t item_empty[kPingPongItems];
};

/// Item `item_count` of the block. Its slot is given back with GiveBackPingPongItem.
__device__ __forceinline__ MlaItem TakePingPongItem(MlaPingPongShared& shared,
                                                    uint32_t item_count) {
  const uint32_t slot = item_count % kPingPongItems;
  BarrierWait(&shared.item_full[slot], (item_count / kPingPongItems) & 1);
  return TakeItem(shared.item[slot]);
}

__device__ __forceinline__ void GiveBackPingPongItem(MlaPingPongShared& shared,
                                                     uint32_t item_count) {
  BarrierArriveWarp(&shared.item_empty[item_count % kPingPongItems]);
}

}  // namespace outrider::cuda
