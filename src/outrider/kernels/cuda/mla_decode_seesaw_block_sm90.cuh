// What the roles of the seesaw MLA decode body share: the layout of shared memory.
// mla_decode_seesaw_sm90.cuh tells the whole algorithm.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"

namespace outrider::cuda {

inline constexpr int kSeesawItems = 3;              // slots: as many as may be on their way
inline constexpr int kSeesawThreads = kMlaThreads;  // two warpgroups that multiply, one that copies
inline constexpr int kSeesawReaders = 11;  // warps that read an item: all but the one that takes it

// Of a thread's 64 column pairs of the splits so far: those that registers have no room for.
inline constexpr int kKeptColumns = 7;

struct MlaSeesawShared {
  alignas(1024) uint8_t q[kQBytes];  // [8 row groups][9][1024]
  // Halves [8 row groups][4][1024], rotary [8][1024]; the latter's place is then that of the tile's
  // probabilities.
  alignas(1024) uint8_t kv[kStages][kStageBytes];
  // Handed from tile to tile: the references of the split so far and what they were multiplied
  // with, the sums of each thread's keys of its two rows.
  uint32_t columns[kKeptColumns][256];
  float reference[kMlaTileRows];
  float alpha[2][kMlaTileRows];  // by tile parity
  float2 sum[128];
  // At a split's end: the state of the splits so far; accumulator to columns (2^-exponent);
  // FoldRow's factors {keep, add}. With an item's output, the state's first number is the factor
  // from columns to output.
  float2 state[kMlaTileRows];
  float normal[kMlaTileRows];
  __half2 fold[kMlaTileRows];
  MlaItem item[kSeesawItems];
  int epoch;
  uint64_t kv_full[kStages][3];
  uint64_t kv_empty[kStages][2][2];  // by half of the columns, half of the keys
  uint64_t rotary_empty[kStages];    // the probabilities too
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t references_full;  // a tile's references
  uint64_t p_full;           // a tile's probabilities and numbers
  uint64_t split_full;
  uint64_t split_empty;
  uint64_t item_full[kSeesawItems];
  uint64_t item_empty[kSeesawItems];
};

/// Item `item_count` of the block, by way of a shuffle: the compiler then knows that all lanes have
/// the same and keeps it in uniform registers. Its slot is given back with item_empty.
__device__ __forceinline__ MlaItem TakeSeesawItem(MlaSeesawShared& shared, uint32_t item_count) {
  const uint32_t slot = item_count % kSeesawItems;
  BarrierWait(&shared.item_full[slot], (item_count / kSeesawItems) & 1);
  const int word = reinterpret_cast<const int*>(&shared.item[slot])[threadIdx.x % 8];
  MlaItem item;
  int* fields = reinterpret_cast<int*>(&item);
#pragma unroll
  for (int i = 0; i < 8; ++i) fields[i] = __shfl_sync(~0u, word, i);
  return item;
}

__device__ __forceinline__ void GiveBackSeesawItem(MlaSeesawShared& shared, uint32_t item_count) {
  BarrierArriveWarp(&shared.item_empty[item_count % kSeesawItems]);
}

}  // namespace outrider::cuda
