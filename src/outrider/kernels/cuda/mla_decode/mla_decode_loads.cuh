// How a block of the bf16 MLA decode kernel hands out its items and copies queries and keys. There
// is no producer warpgroup: whoever is the last to read a part of a stage also issues the copy that
// refills it. Warp 0 of the scores walks ahead of the computation: it takes items from the list,
// reads the block table and leaves for each tile where its keys lie (MlaShared::load). Copies are
// issued by elected lanes: where the compiler knows of one lane only, it needs no loop around them.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_block.cuh"

namespace outrider::cuda {

/// Where the boxes of a tile's `keys` keys from key `first` go, one by one: `keys_per_box` each.
template <typename Body>
__device__ __forceinline__ void ForBoxes(const int* places, int first, int keys, int keys_per_box,
                                         Body body) {
#pragma unroll 1
  for (int key = first; key < first + keys; key += keys_per_box) body(key, places[key / 16]);
}

/// Copies keys 0-31 (half 0) or 32-63 of columns 0-255 (part 0) or 256-511 of tile `tile_count` of
/// this block into its stage, if there is such a tile. Half 0 comes first. One elected thread; the
/// keys' place must be free.
__device__ __forceinline__ void IssueKeys(const MlaKernelArguments& args, const MlaTensorMaps& maps,
                                          MlaShared& shared, uint32_t tile_count, int part,
                                          int half) {
  const int* places = shared.load[tile_count % kLoadSlots];
  if (places[0] < 0) return;
  const int stage = tile_count % kStages;
  uint64_t* full = &shared.kv_full[stage][part];
  uint8_t* destination = shared.kv[stage] + part * kHalfBytes;
  if (half == 0) BarrierArriveExpect(full, kHalfBytes);
  ForBoxes(places, 32 * half, 32, 1 << min(args.page_shift, 5), [&](int key, int place) {
    LoadKeys(destination + key / 8 * 4 * kGroupBytes, &maps.kv_half, full, 4 * part, place);
  });
}

/// Loads columns 512-575 of all keys.
__device__ __forceinline__ void IssueRotary(const MlaKernelArguments& args,
                                            const MlaTensorMaps& maps, MlaShared& shared,
                                            uint32_t tile_count) {
  const int* places = shared.load[tile_count % kLoadSlots];
  if (places[0] < 0) return;
  const int stage = tile_count % kStages;
  uint64_t* full = &shared.kv_full[stage][2];
  BarrierArriveExpect(full, kRotaryBytes);
  ForBoxes(places, 0, kMlaTileKeys, 1 << min(args.page_shift, 6), [&](int key, int place) {
    LoadKeys(shared.kv[stage] + 2 * kHalfBytes + key / 8 * kGroupBytes, &maps.kv_rotary, full, 8,
             place);
  });
}

/// Copies an item's queries, 8 rows at a time; rows past the tile hold other tokens' queries or
/// what was there and are never stored. One elected thread; the queries before must no longer be
/// needed.
__device__ __forceinline__ void IssueQueries(const MlaTensorMaps& maps, MlaShared& shared,
                                             const MlaItem& item) {
  if (item.request < 0) return;
  const int groups = (item.num_rows() + 7) / 8;
  BarrierArriveExpect(&shared.q_full, groups * 9 * kGroupBytes);
#pragma unroll 1
  for (int i = 0; i < groups; ++i) {
    TensorLoad4d(shared.q + i * 9 * kGroupBytes, &maps.q, &shared.q_full, kEvictNormal, 0,
                 item.first_row + 8 * i, 0, 0);
  }
}

/// An item's first tiles, kStages at most: how many there are, and how many of them have no keys
/// but those of earlier steps, which may be copied while the kernel before this one runs.
struct FirstTiles {
  int all = 0;
  int early = 0;
  __device__ explicit FirstTiles(const MlaItem& item) {
    if (item.request < 0) return;
    const int keys = item.key_end - item.key_begin;
    const int known = min(item.key_end, item.context) - item.key_begin;
    all = min(kStages, (keys + kMlaTileKeys - 1) / kMlaTileKeys);
    early = max(0, min(all, known / kMlaTileKeys));
  }
};

/// The walk over this block's tiles, ahead of the computation. All lanes of one warp. Tiles are
/// passed in groups of up to eight of one item, a lane per 16 keys.
class LoadWalk {
 public:
  /// Takes the first item and finds the boxes of its first tiles. Reads what the step's plan and
  /// what came before the plan have written, nothing else: the kernel before this one may run.
  __device__ void Begin(const MlaKernelArguments& args, MlaShared& shared) {
    num_items_ = __ldcg(&args.workspace.counters->num_items);
    late_claims_ = __ldcg(&args.workspace.counters->late_claims) != 0;
    Fetch(args, blockIdx.x);
    Publish(args, shared);
  }

  /// Once the kernel before this one has finished: finds the boxes of as many tiles as there are
  /// stages, also of a second item.
  __device__ void Continue(const MlaKernelArguments& args, MlaShared& shared) {
    shared.epoch = __ldcg(&args.workspace.counters->epoch);
    may_claim_ = true;
    if (!ended_ && (!late_claims_ || tiles_ == 0)) Claim(args);
    while (published_ < kStages) Publish(args, shared);
  }

  /// Sees to it that the boxes of the three tiles after `tile_count` are known. A call that finds
  /// them takes one step towards the next item instead, so that nothing waits for memory: its
  /// number is on its way since the item before was entered, its record is asked for in one call,
  /// entered (and its pages asked for) in the next.
  __device__ void Step(const MlaKernelArguments& args, MlaShared& shared, uint32_t tile_count) {
    if (published_ < tile_count + kStages + 1) {
      do Publish(args, shared);
      while (published_ < tile_count + kStages + 1);
    } else if (claimed_) {
      Fetch(args, __shfl_sync(~0u, next_index_, 0));
    } else if (tiles_ == 0) {
      Enter(args, shared);
    }
  }

 private:
  static constexpr int kGroup = 8;

  __device__ void Publish(const MlaKernelArguments& args, MlaShared& shared) {
    if (tiles_ == 0) Enter(args, shared);
    const int lane = threadIdx.x % 32;
    const int tile = lane / 4;
    const int in_page = key_ & ((1 << args.page_shift) - 1);
    shared.load[(published_ + tile) % kLoadSlots][lane % 4] =
        tile < tiles_ ? KeyPlace(page_, in_page) : -1;
    if (tiles_ == 0) {
      published_ += kGroup;  // the end
      return;
    }
    published_ += min(tiles_, kGroup);
    tiles_ -= min(tiles_, kGroup);
    key_ += kGroup * kMlaTileKeys;
    if (tiles_ > 0) {
      ReadTable(args);
    } else if (late_claims_) {
      Claim(args);
    }
  }
  /// Asks for an item's record, a word per lane.
  __device__ void Fetch(const MlaKernelArguments& args, int index) {
    claimed_ = false;
    // The list has room for indices past its end.
    record_ = __ldcg(reinterpret_cast<const int*>(args.workspace.items + index) + threadIdx.x % 8);
    past_end_ = index >= num_items_;
  }
  /// Takes the next item's number: when an item is entered, so that the next is known in time;
  /// late, with the last of its tiles, where items differ so much in length that the order in which
  /// blocks come to their ends matters (tiles shared by two items).
  __device__ void Claim(const MlaKernelArguments& args) {
    if (!may_claim_) return;
    if (threadIdx.x % 32 == 0) {
      next_index_ = gridDim.x + atomicAdd(&args.workspace.counters->next_item, 1);
    }
    claimed_ = true;
  }
  /// Publishes the item that was fetched; nothing after the last.
  __device__ void Enter(const MlaKernelArguments& args, MlaShared& shared) {
    if (ended_) return;
    const int lane = threadIdx.x % 32;
    if (claimed_) Fetch(args, __shfl_sync(~0u, next_index_, 0));
    if (past_end_) record_ = -1;
    if (lane < 8) {
      reinterpret_cast<int*>(&shared.item[item_count_ % kItemSlots])[lane] = record_;
    }
    ++item_count_;
    const int request = __shfl_sync(~0u, record_, 0);
    const int key_begin = __shfl_sync(~0u, record_, 1);
    const int key_end = __shfl_sync(~0u, record_, 2);
    const int seq_len = __shfl_sync(~0u, record_, 6);
    ended_ = request < 0;
    if (ended_) return;
    tiles_ = (key_end - key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    table_ = args.block_table + static_cast<size_t>(request) * args.block_table_stride;
    last_page_ = (seq_len - 1) >> args.page_shift;
    key_ = key_begin + lane * 16;
    ReadTable(args);
    if (!late_claims_) Claim(args);
  }
  __device__ void ReadTable(const MlaKernelArguments& args) {
    page_ = __ldcg(&table_[min(key_ >> args.page_shift, last_page_)]);
  }

  int num_items_ = 0;
  const int* table_ = nullptr;
  int last_page_ = 0;
  int tiles_ = 0;  // of the item, not yet published
  int key_ = 0;    // this lane's first
  int page_ = 0;
  int record_ = -1;
  int next_index_ = 0;
  bool past_end_ = false;
  bool late_claims_ = false;
  bool may_claim_ = false;
  bool claimed_ = false;  // next_index_ is on its way
  bool ended_ = false;
  uint32_t item_count_ = 0;
  uint32_t published_ = 0;
};

}  // namespace outrider::cuda
