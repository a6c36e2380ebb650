// How a block of the bf16 MLA decode kernel hands out its items and copies queries and keys. There
// is no producer warpgroup: whoever is the last to read a part of a stage also issues the copy that
// refills it. Warp 0 of the scores walks ahead of the computation: it takes items from the list,
// reads the block table and leaves for each tile where its boxes begin (MlaShared::load).
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"

namespace outrider::cuda {

/// Copies part `part` (columns 0-255, 256-511, 512-575) of tile `tile_count` of this block into its
/// stage, if there is such a tile. One thread; the part must be free.
__device__ __forceinline__ void IssueKeys(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                          MlaShared& shared, uint32_t tile_count, int part) {
  const int4 row_groups = shared.load[tile_count % kLoadSlots];
  if (row_groups.x < 0) return;
  const int stage = tile_count % kStages;
  uint64_t* full = &shared.kv_full[stage][part];
  uint8_t* destination = shared.kv[stage] + part * kHalfBytes;
  const CUtensorMap* map = part < 2 ? &maps.kv_half : &maps.kv_rotary;
  const uint32_t bytes = part < 2 ? kHalfBytes : kRotaryBytes;
  BarrierArriveExpect(full, bytes);
  const int column_group = 4 * part;
  TensorLoad4d(destination, map, full, kEvictFirst, 0, 0, column_group, row_groups.x);
  if (args.page_shift == 5) {
    TensorLoad4d(destination + bytes / 2, map, full, kEvictFirst, 0, 0, column_group, row_groups.y);
  } else if (args.page_shift == 4) {
    TensorLoad4d(destination + bytes / 4, map, full, kEvictFirst, 0, 0, column_group, row_groups.y);
    TensorLoad4d(destination + bytes / 2, map, full, kEvictFirst, 0, 0, column_group, row_groups.z);
    TensorLoad4d(destination + bytes / 4 * 3, map, full, kEvictFirst, 0, 0, column_group,
                 row_groups.w);
  }
}

/// Copies an item's queries, 8 rows at a time; rows past the tile keep what was there and are never
/// stored. One thread; the queries before must no longer be needed.
__device__ __forceinline__ void IssueQueries(const MlaTensorMaps& maps, MlaShared& shared,
                                             const MlaItem& item) {
  if (item.request < 0) return;
  const int groups = (item.rows & 255) / 8;
  BarrierArriveExpect(&shared.q_full, groups * 9 * kGroupBytes);
  for (int i = 0; i < groups; ++i) {
    TensorLoad4d(shared.q + i * 9 * kGroupBytes, &maps.q, &shared.q_full, kEvictNormal, 0, 0, 0,
                 item.first_row / 8 + i);
  }
}

/// The walk over this block's tiles, ahead of the computation. All lanes of one warp.
class LoadWalk {
 public:
  __device__ explicit LoadWalk(const MlaKernelArguments& args)
      : args_(args), lane_(threadIdx.x % 32) {}

  /// Takes the first item.
  __device__ void Begin(MlaShared& shared) {
    num_items_ = args_.workspace.counters->num_items;
    Fetch(blockIdx.x);
    Enter(shared);
    ReadTable();
  }

  /// Leaves where the next tile's boxes begin and reads the block table for the one after.
  __device__ void Step(MlaShared& shared) {
    if (lane_ < 4) {
      reinterpret_cast<int*>(&shared.load[step_count_ % kLoadSlots])[lane_] =
          tiles_ == 0 ? -1
                      : ((page_ << args_.page_shift) + (key_ & ((1 << args_.page_shift) - 1))) / 8;
    }
    ++step_count_;
    if (tiles_ == 0) return;
    if (claimed_) Fetch(__shfl_sync(~0u, next_index_, 0));
    if (--tiles_ > 0) {
      key_ += kMlaTileKeys;
    } else {
      Enter(shared);
    }
    ReadTable();
  }

 private:
  /// Asks for an item's record, a word per lane.
  __device__ void Fetch(int index) {
    claimed_ = false;
    // The list has room for indices past its end.
    record_ = __ldcg(reinterpret_cast<const int*>(args_.workspace.items + index) + lane_ % 8);
    past_end_ = index >= num_items_;
  }
  /// Publishes the item that was fetched and claims another.
  __device__ void Enter(MlaShared& shared) {
    if (claimed_) Fetch(__shfl_sync(~0u, next_index_, 0));
    if (past_end_) record_ = -1;
    if (lane_ < 8) {
      reinterpret_cast<int*>(&shared.item[item_count_ % kItemSlots])[lane_] = record_;
    }
    ++item_count_;
    const int request = __shfl_sync(~0u, record_, 0);
    const int key_begin = __shfl_sync(~0u, record_, 1);
    const int key_end = __shfl_sync(~0u, record_, 2);
    const int seq_len = __shfl_sync(~0u, record_, 6);
    if (request < 0) {
      tiles_ = 0;
      return;
    }
    tiles_ = (key_end - key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    table_ = args_.block_table + static_cast<size_t>(request) * args_.block_table_stride;
    last_page_ = (seq_len - 1) >> args_.page_shift;
    key_ = key_begin + (lane_ << min(args_.page_shift, 6));
    if (lane_ == 0) next_index_ = gridDim.x + atomicAdd(&args_.workspace.counters->next_item, 1);
    claimed_ = true;
  }
  __device__ void ReadTable() {
    if (tiles_ > 0 && lane_ < 4) page_ = __ldg(&table_[min(key_ >> args_.page_shift, last_page_)]);
  }

  const MlaKernelArguments& args_;
  const int lane_;
  int num_items_ = 0;
  const int* table_ = nullptr;
  int last_page_ = 0;
  int tiles_ = 0;  // left in the item, the pending one included
  int key_ = 0;    // of this lane's box of the pending tile
  int page_ = 0;
  int record_ = -1;
  int next_index_ = 0;
  bool past_end_ = false;
  bool claimed_ = false;  // next_index_ is on its way
  uint32_t item_count_ = 0;
  uint32_t step_count_ = 0;
};

}  // namespace outrider::cuda
