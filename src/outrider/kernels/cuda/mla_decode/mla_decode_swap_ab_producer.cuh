// The producer of the swap-AB MLA decode body: one warp hands out items and copies the latent part
// of the keys, another copies the rotary part, as soon as a stage of the ring is free.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_swap_ab_block.cuh"

namespace outrider::cuda {

/// The first keys of an item's tiles in the order of the ring.
class TileOrder {
 public:
  __device__ TileOrder(const MlaItem& item, const MlaSplits& splits)
      : item_(item), splits_(splits), pair_(item, splits) {}
  struct Tile {
    int key;  // -1 at the end
    int consumer;
  };
  __device__ Tile Next() {
    if (next_[0] == pair_.tiles[0] && next_[1] == pair_.tiles[1]) {
      if (pair_.Done(item_)) return {-1, 0};
      pair_.Advance(item_, splits_);
      next_[0] = next_[1] = 0;
      if (pair_.Done(item_)) return {-1, 0};
    }
    const bool second =
        next_[1] < pair_.tiles[1] && (next_[0] > next_[1] || next_[0] == pair_.tiles[0]);
    if (second) return {pair_.begin[1] + next_[1]++ * kMlaTileKeys, 1};
    return {pair_.begin[0] + next_[0]++ * kMlaTileKeys, 0};
  }

 private:
  const MlaItem& item_;
  const MlaSplits& splits_;
  SplitPair pair_;
  int next_[2] = {0, 0};
};

/// Copies one part of every key of an item.
template <typename Shared>
__device__ __forceinline__ void CopyKeys(const MlaKernelArguments& args, const CUtensorMap* map,
                                         Shared& shared, const MlaItem& item, bool rotary,
                                         uint32_t* ring) {
  const int lane = threadIdx.x % 32;
  const int box_shift = min(args.page_shift, 6);
  const int boxes = kMlaTileKeys >> box_shift;
  const int page_mask = (1 << args.page_shift) - 1;
  const int* table = args.block_table + static_cast<size_t>(item.request) * args.block_table_stride;
  const int last_page = max(0, (item.seq_len - 1) >> args.page_shift);
  const uint32_t part_bytes = rotary ? kSwapAbRotaryBytes : kLatentBytes;
  const uint32_t part_offset = rotary ? kLatentBytes : 0;
  const uint32_t box_bytes = part_bytes >> (6 - box_shift);
  // Lane l looks up the page of box l.
  auto place_of = [&](int key0) {
    const int key = key0 + (lane % boxes << box_shift);
    const int page = __ldg(&table[min(key >> args.page_shift, last_page)]);
    return KeyPlace(page, key & page_mask);
  };
  TileOrder order(item, args.splits);
  TileOrder::Tile tile = order.Next();
  int place = tile.key < 0 ? 0 : place_of(tile.key);
  while (tile.key >= 0) {
    const TileOrder::Tile next = order.Next();
    const int next_place = next.key < 0 ? 0 : place_of(next.key);  // arrives in the wait
    const int stage = *ring % Shared::kStages;
    const uint32_t parity = ((*ring / Shared::kStages) & 1) ^ 1;
    ++*ring;
    BarrierWait(&shared.kv_empty[stage], parity);
    uint64_t* full = &shared.kv_full[tile.consumer][stage];
    if (lane == 0) BarrierArriveExpect(full, part_bytes);
    __syncwarp();
    if (lane < boxes) {
      LoadKeys(shared.kv[stage] + part_offset + lane * box_bytes, map, full,
               rotary ? kMlaValueDim / 64 : 0, place);
    }
    __syncwarp();
    tile = next;
    place = next_place;
  }
}

template <typename Shared>
__device__ __forceinline__ void ProduceSwapAb(const MlaKernelArguments& args,
                                              const MlaSwapAbMaps& maps, Shared& shared) {
  const int warp = threadIdx.x / 32 - 4 * kSwapAbConsumers;
  const int lane = threadIdx.x % 32;
  uint32_t ring = 0;
  if (warp == 1) {
    for (uint32_t item_count = 0;; ++item_count) {
      const MlaItem item = TakeSwapAbItem(shared, item_count);
      if (item.request < 0) break;
      CopyKeys(args, &maps.rotary, shared, item, true, &ring);
    }
    return;
  }
  if (warp != 0) return;
  const int num_items = args.workspace.counters->num_items;
  int index = blockIdx.x;
  for (uint32_t item_count = 0;; ++item_count) {
    const int slot = item_count & 1;
    // The list has room for indices past its end.
    MlaItem item = args.workspace.items[index];
    if (index >= num_items) item.request = -1;
    if (lane == 0) {
      BarrierWait(&shared.item_empty[slot], ((item_count >> 1) & 1) ^ 1);
      shared.item[slot] = item;
      BarrierArrive(&shared.item_full[slot]);
    }
    if (item.request < 0) break;
    int next = 0;
    if (lane == 0) next = gridDim.x + atomicAdd(&args.workspace.counters->next_item, 1);
    CopyKeys(args, &maps.latent, shared, item, false, &ring);
    index = __shfl_sync(~0u, next, 0);
  }
}

}  // namespace outrider::cuda
