// How a block of listed attention hands out its items and gathers entries.
//
// Warp 0 of the scores walks ahead: it takes items from the plan's list and says for every tile which
// places of which row's list it has (MlaShared::load). A warp of the output warpgroups gathers 16 of
// a tile's 64 entries, of its 256 columns and, 8 of them, the rotary part: lanes look places up in
// the list and in the block table, then each copy of 16 bytes a lane brings 512 bytes of an entry
// straight into the tile's swizzled place.
#pragma once

#include "outrider/kernels/cuda/mla_decode_block_sm90.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention.h"

namespace outrider::cuda {

struct ListedArguments {
  // What folds and results need; rows are numbered from the call's first. block_table, cache and
  // visible are not used.
  MlaKernelArguments mla;
  const int* request;    // [rows]
  const int32_t* lists;  // [rows, lists_stride]
  int64_t lists_stride;
  const uint8_t* entries;
  const int* block_table;
  int block_table_stride;
  int page_shift;
  int64_t page_stride;  // bytes
};

inline constexpr int kEntryBytes = kMlaKeyDim * 2;
/// Arrivals at a part of a stage: every thread of the warpgroup that gathers it.
inline constexpr int kGatherArrivals = 128;

/// The places of one tile. row -1: no tile.
struct alignas(16) ListTile {
  int row;
  int request;
  int place;  // of the tile's first entry
  int count;  // of the list
};

__device__ __forceinline__ ListTile LoadListTile(const MlaShared& shared, uint32_t tile_count) {
  const int4 words = *reinterpret_cast<const int4*>(shared.load[tile_count % kLoadSlots]);
  return {words.x, words.y, words.z, words.w};
}

/// The walk over this block's tiles, ahead of the computation. All lanes of one warp.
class ListWalk {
 public:
  /// Takes the first item and publishes as many tiles as there are stages, and one more. The
  /// kernels before this one have finished.
  __device__ void Begin(const ListedArguments& args, MlaShared& shared) {
    const MlaCounters* counters = args.mla.workspace.counters;
    num_items_ = __ldcg(&counters->num_items);
    late_claims_ = __ldcg(&counters->late_claims) != 0;
    shared.epoch = __ldcg(&counters->epoch);
    Fetch(args, static_cast<int>(blockIdx.x));
    while (published_ < kStages + 1) Publish(args, shared);
  }

  /// Sees to it that the places of the four tiles after `tile_count` are known. A call that finds
  /// them takes one step towards the next item instead, so that nothing waits for memory.
  __device__ void Step(const ListedArguments& args, MlaShared& shared, uint32_t tile_count) {
    if (published_ < tile_count + kStages + 2) {
      do Publish(args, shared);
      while (published_ < tile_count + kStages + 2);
    } else if (claimed_) {
      Fetch(args, __shfl_sync(~0u, next_index_, 0));
    } else if (tiles_ == 0) {
      Enter(args, shared);
    }
  }

 private:
  static constexpr int kGroup = 8;

  __device__ void Publish(const ListedArguments& args, MlaShared& shared) {
    if (tiles_ == 0) Enter(args, shared);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kGroup) {
      int4* slot = reinterpret_cast<int4*>(shared.load[(published_ + lane) % kLoadSlots]);
      *slot = lane < tiles_ ? make_int4(row_, request_, place_ + lane * kMlaTileKeys, count_)
                            : make_int4(-1, 0, 0, 0);
    }
    if (tiles_ == 0) {
      published_ += kGroup;  // the end
      return;
    }
    published_ += min(tiles_, kGroup);
    tiles_ -= min(tiles_, kGroup);
    place_ += kGroup * kMlaTileKeys;
    if (tiles_ == 0 && late_claims_) Claim(args);
  }
  /// Asks for an item's record, a word per lane.
  __device__ void Fetch(const ListedArguments& args, int index) {
    claimed_ = false;
    // The list has room for indices past its end.
    record_ = __ldcg(reinterpret_cast<const int*>(args.mla.workspace.items + index) +
                     threadIdx.x % 8);
    past_end_ = index >= num_items_;
  }
  /// Takes the next item's number: when an item is entered, or, where items differ much in length,
  /// with the last of its tiles (LoadWalk of mla_decode_loads_sm90.cuh).
  __device__ void Claim(const ListedArguments& args) {
    if (threadIdx.x % 32 == 0) {
      next_index_ = gridDim.x + atomicAdd(&args.mla.workspace.counters->next_item, 1);
    }
    claimed_ = true;
  }
  /// Publishes the item that was fetched; nothing after the last.
  __device__ void Enter(const ListedArguments& args, MlaShared& shared) {
    if (ended_) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (claimed_) Fetch(args, __shfl_sync(~0u, next_index_, 0));
    if (past_end_) record_ = -1;
    if (lane < 8) {
      reinterpret_cast<int*>(&shared.item[item_count_ % kItemSlots])[lane] = record_;
    }
    ++item_count_;
    row_ = __shfl_sync(~0u, record_, 0);
    const int begin = __shfl_sync(~0u, record_, 1);
    const int end = __shfl_sync(~0u, record_, 2);
    count_ = __shfl_sync(~0u, record_, 6);
    ended_ = row_ < 0;
    if (ended_) return;
    tiles_ = (end - begin + kMlaTileKeys - 1) / kMlaTileKeys;
    place_ = begin;
    request_ = __ldcg(args.request + row_);
    if (!late_claims_) Claim(args);
  }

  int num_items_ = 0;
  int tiles_ = 0;  // of the item, not yet published
  int row_ = -1;
  int request_ = 0;
  int place_ = 0;
  int count_ = 0;
  int record_ = -1;
  int next_index_ = 0;
  bool past_end_ = false;
  bool late_claims_ = false;
  bool claimed_ = false;  // next_index_ is on its way
  bool ended_ = false;
  uint32_t item_count_ = 0;
  uint32_t published_ = 0;
};

/// Copies 16 bytes, or writes 16 zeros.
__device__ __forceinline__ void CopyOrZero(uint32_t destination, const uint8_t* source,
                                           bool copies) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(copies ? 16 : 0)
               : "memory");
}
/// This thread's arrival, once all that it copies is there.
__device__ __forceinline__ void ArriveWithCopies(uint64_t* barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
      : "memory");
}

/// A warp's part of gathering a tile: entries 8 warp .. 8 warp + 7 of either half of 32, their
/// columns 256 group .. 256 group + 255; of half `group` the rotary part too. Find, Resolve, Copy of
/// half 0, Copy of half 1 and Arrive, in this order. All lanes.
class EntryGather {
 public:
  __device__ EntryGather(int group, int warp) : group_(group), warp_(warp) {}

  /// Asks for the list's places: lane l < 16 has entry 32 (l / 8) + 8 warp + l % 8 of the tile.
  __device__ void Find(const ListedArguments& args, const MlaShared& shared,
                       uint32_t tile_count) {
    const ListTile tile = LoadListTile(shared, tile_count);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int place = tile.place + lane / 8 % 2 * 32 + warp_ * 8 + lane % 8;
    entry_ = -1;
    if (tile.row >= 0 && place < tile.count) {
      entry_ = __ldcg(args.lists + tile.row * args.lists_stride + place);
    }
  }
  /// Asks for the pages.
  __device__ void Resolve(const ListedArguments& args, const MlaShared& shared,
                          uint32_t tile_count) {
    offset_ = -1;
    if (entry_ < 0) return;
    const int request = LoadListTile(shared, tile_count).request;
    const int64_t page = __ldcg(args.block_table +
                                static_cast<int64_t>(request) * args.block_table_stride +
                                (entry_ >> args.page_shift));
    const int in_page = entry_ & ((1 << args.page_shift) - 1);
    offset_ = page * args.page_stride + in_page * kEntryBytes;
  }
  __device__ void Copy(const ListedArguments& args, MlaShared& shared, uint32_t tile_count,
                       int half) const {
    if (LoadListTile(shared, tile_count).row < 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int stage = static_cast<int>(tile_count % kStages);
    const uint8_t* source = args.entries + group_ * 512 + lane * 16;
    const uint32_t destination = SharedAddress(shared.kv[stage]) + group_ * kHalfBytes +
                                 (4 * half + warp_) * 4 * kGroupBytes + lane / 8 * kGroupBytes +
                                 lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t offset = __shfl_sync(~0u, offset_, 8 * half + i);
      // Row i of its group of 8: 128 bytes each, the chunk of 16 bytes swizzled by the row.
      CopyOrZero(destination ^ (i * 144), source + max(offset, int64_t{0}), offset >= 0);
    }
    if (half != group_) return;
    const uint8_t* rotary = args.entries + 1024 + lane % 8 * 16;
    const uint32_t rotary_destination =
        SharedAddress(shared.kv[stage]) + 2 * kHalfBytes + (4 * half + warp_) * kGroupBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 4 * i + lane / 8;
      const int64_t offset = __shfl_sync(~0u, offset_, 8 * half + row);
      CopyOrZero(rotary_destination + row * 128 + ((lane % 8) ^ row) * 16,
                 rotary + max(offset, int64_t{0}), offset >= 0);
    }
  }
  __device__ void Arrive(MlaShared& shared, uint32_t tile_count) const {
    if (LoadListTile(shared, tile_count).row < 0) return;
    ArriveWithCopies(&shared.kv_full[tile_count % kStages][group_]);
  }

 private:
  int group_;
  int warp_;
  int entry_ = -1;
  int64_t offset_ = -1;
};

}  // namespace outrider::cuda
