// The producer warpgroup of the ping-pong body MLA decode body, a warp per part: warp 0 takes items
// and copies columns 0-255 of their keys, warp 1 columns 256-511, warp 2 columns 512-575, warp 3
// the queries. A part of a stage is refilled as soon as it has been read.
#pragma once

#include "outrider/kernels/cuda/mla_decode_loads_sm90.cuh"
#include "outrider/kernels/cuda/mla_decode_pingpong_block_sm90.cuh"

namespace outrider::cuda {

// Four row tiles or more read a request's keys, not at quite the same time: evict-first, a quarter
// of them would come from memory again (measured).
inline constexpr uint64_t kPingPongKeys = kNoPolicy;

/// Calls copy(key, row groups of keys 0, 16, 32 and 48) for each tile of an item; the block table
/// is read one tile ahead. All lanes of a warp.
template <typename Copy>
__device__ __forceinline__ void ForTiles(const MlaKernelArguments& args, const MlaItem& item,
                                         Copy copy) {
  const int* table = args.block_table + static_cast<size_t>(item.request) * args.block_table_stride;
  const int last_page = (item.seq_len - 1) >> args.page_shift;
  const int page_mask = (1 << args.page_shift) - 1;
  int key = item.key_begin + threadIdx.x % 4 * 16;
  int page = __ldg(&table[min(key >> args.page_shift, last_page)]);
#pragma unroll 1
  for (int tile_key = item.key_begin; tile_key < item.key_end; tile_key += kMlaTileKeys) {
    const int row_group = ((page << args.page_shift) + (key & page_mask)) / 8;
    key += kMlaTileKeys;
    page = __ldg(&table[min(key >> args.page_shift, last_page)]);  // arrives in the wait
    copy(row_group);
  }
}

/// Columns 0-255 (half 0) or 256-511 of an item's keys, 32 keys at a time.
__device__ __forceinline__ void CopyKeys(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                         MlaPingPongShared& shared, const MlaItem& item, int half,
                                         uint32_t* tile_count) {
  ForTiles(args, item, [&](int row_group) {
    const int stage = *tile_count % kStages;
    const uint32_t parity = ((*tile_count / kStages) & 1) ^ 1;
    ++*tile_count;
    uint64_t* full = &shared.kv_full[stage][half];
#pragma unroll
    for (int keys = 0; keys < 2; ++keys) {
      const int first = __shfl_sync(~0u, row_group, 2 * keys);
      const int second = __shfl_sync(~0u, row_group, 2 * keys + 1);
      uint8_t* destination = shared.kv[stage] + half * kHalfBytes + keys * (kHalfBytes / 2);
      BarrierWait(&shared.kv_empty[stage][half][keys], parity);
      if (ElectOne()) {
        if (keys == 0) BarrierArriveExpect(full, kHalfBytes);
        TensorLoad4d(destination, &maps.kv_half, full, kPingPongKeys, 0, 0, 4 * half, first);
        if (args.page_shift == 4) {
          TensorLoad4d(destination + kHalfBytes / 4, &maps.kv_half, full, kPingPongKeys, 0, 0,
                       4 * half, second);
        }
      }
      __syncwarp();
    }
  });
}

__device__ __forceinline__ void CopyRotary(const MlaKernelArguments& args,
                                           const MlaTensorMaps& maps, MlaPingPongShared& shared,
                                           const MlaItem& item, uint32_t* tile_count) {
  const int box = 1 << min(args.page_shift, 6);
  ForTiles(args, item, [&](int row_group) {
    const int stage = *tile_count % kStages;
    const uint32_t parity = ((*tile_count / kStages) & 1) ^ 1;
    ++*tile_count;
    uint64_t* full = &shared.kv_full[stage][2];
    BarrierWait(&shared.rotary_empty[stage], parity);
    if (ElectOne()) BarrierArriveExpect(full, kRotaryBytes);
    __syncwarp();
#pragma unroll 1
    for (int key = 0; key < kMlaTileKeys; key += box) {
      const int at = __shfl_sync(~0u, row_group, key / 16);
      if (ElectOne()) {
        TensorLoad4d(shared.kv[stage] + 2 * kHalfBytes + key / 8 * kGroupBytes, &maps.kv_rotary,
                     full, kPingPongKeys, 0, 0, 8, at);
      }
      __syncwarp();
    }
  });
}

/// Takes items, hands them to the other warps and copies the first half of their keys. The next
/// item's number is taken when an item begins, so that it is known in time; late, after the last of
/// its copies, where items differ so much in length that the order in which blocks come to their
/// ends matters (tiles shared by two items).
__device__ __forceinline__ void TakeItems(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                          MlaPingPongShared& shared) {
  const int lane = threadIdx.x % 32;
  MlaCounters* counters = args.workspace.counters;
  const int num_items = counters->num_items;
  const bool late_claims = counters->late_claims != 0;
  const int epoch = counters->epoch;
  if (lane == 0) shared.epoch = epoch;
  int index = blockIdx.x;
  uint32_t tile_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const uint32_t slot = item_count % kPingPongItems;
    // The list has room for indices past its end.
    int word = __ldcg(reinterpret_cast<const int*>(args.workspace.items + index) + lane % 8);
    if (index >= num_items) word = -1;
    BarrierWait(&shared.item_empty[slot], ((item_count / kPingPongItems) & 1) ^ 1);
    if (lane < 8) reinterpret_cast<int*>(&shared.item[slot])[lane] = word;
    BarrierArriveWarp(&shared.item_full[slot]);
    const MlaItem item = ItemOfWords(word);
    if (item.request < 0) break;
    int next = 0;
    if (!late_claims && lane == 0) next = gridDim.x + atomicAdd(&counters->next_item, 1);
    CopyKeys(args, maps, shared, item, 0, &tile_count);
    if (late_claims && lane == 0) next = gridDim.x + atomicAdd(&counters->next_item, 1);
    index = __shfl_sync(~0u, next, 0);
  }
  if (lane == 0) LeaveKernel(args.workspace, epoch);
}

__device__ __forceinline__ void CopyItems(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                          MlaPingPongShared& shared) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % 128 / 32, 0);
  if (warp == 0) {
    TakeItems(args, maps, shared);
    return;
  }
  uint32_t tile_count = 0;
  for (uint32_t item_count = 0;; ++item_count) {
    const MlaItem item = TakePingPongItem(shared, item_count);
    if (item.request < 0) break;
    if (warp == 1) {
      CopyKeys(args, maps, shared, item, 1, &tile_count);
    } else if (warp == 2) {
      CopyRotary(args, maps, shared, item, &tile_count);
    } else {
      BarrierWait(&shared.q_empty, (item_count & 1) ^ 1);
      if (ElectOne()) IssueQueries(maps, shared, item);
      __syncwarp();
    }
    GiveBackPingPongItem(shared, item_count);
  }
}

}  // namespace outrider::cuda
