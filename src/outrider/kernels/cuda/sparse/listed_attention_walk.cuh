// How a block of listed attention hands out its items and gathers entries.
//
// Warp 0 of the scores walks ahead, a lane for two of a tile's 64 places: it takes items from the
// plan's list, looks the places up in the row's list and in the block table, and leaves where the
// entries lie (ListedShared::offsets). What it reads it has asked for a tile before. A warpgroup of
// its own gathers: each of its warps brings 16 of the 64 entries straight into their swizzled
// places, 512 bytes of an entry with one instruction. Whoever copies waits at times until the
// multiprocessor takes more copies, so it should have nothing else to do.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_fold.cuh"
#include "outrider/kernels/cuda/sparse/listed_attention.h"

namespace outrider::cuda {

/// What the kernel reads of lists and entries. A form of listed attention has such arguments, the
/// width of its entries, how a row's list names them and where they lie: LatentForm below,
/// WindowForm (compressed/compressed_attention_form.cuh).
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
  uint32_t page_units;  // of kOffsetUnit bytes
};

inline constexpr int kGatherThreads = 128;  // warpgroup 3
inline constexpr int kListedThreads = kMlaThreads + kGatherThreads;

inline constexpr uint32_t kNoEntry = ~0u;      // a place behind the list's end
inline constexpr uint32_t kNoTile = ~0u - 1u;  // at place 0

/// Units of the offsets of latent entries: one of 1152 bytes is 18, one of codes 9, a page a whole
/// number of them.
inline constexpr int kOffsetUnit = 64;

/// Entries [latent 512 | rotary 64] of one cache (DeepSeek-V3.2, GLM-5): bf16, or e4m3 codes, which
/// are widened when they have been gathered (listed_attention_codes.cuh).
template <bool kHasCodes>
struct LatentForm {
  using Arguments = ListedArguments;
  static constexpr bool kCodes = kHasCodes;
  static constexpr int kWidth = kMlaKeyDim;
  static constexpr uint32_t kEntryUnits = kWidth * (kCodes ? 1 : 2) / kOffsetUnit;

  /// What a row's places are looked up by.
  struct Row {
    int request = 0;
  };
  __device__ static Row Enter(const Arguments& args, int row) {
    return {__ldcg(args.request + row)};
  }
  /// Asks for the entry at a place of a row's list.
  __device__ static int Find(const Arguments& args, const Row&, int row, int place) {
    return __ldcg(args.lists + row * args.lists_stride + place);
  }
  /// Asks for the page of an entry.
  __device__ static int FindPage(const Arguments& args, const Row& list, int entry) {
    return __ldcg(args.block_table + static_cast<int64_t>(list.request) * args.block_table_stride +
                  (entry >> args.page_shift));
  }
  __device__ static uint32_t Offset(const Arguments& args, int page, int entry) {
    return static_cast<uint32_t>(page) * args.page_units +
           static_cast<uint32_t>(entry & ((1 << args.page_shift) - 1)) * kEntryUnits;
  }
  __device__ static const uint8_t* At(const Arguments& args, uint32_t offset) {
    return args.entries + static_cast<uint64_t>(offset) * kOffsetUnit;
  }
  /// What makes outputs of folded columns.
  __device__ static PlainResults Results(const Arguments&) { return {}; }
};

/// MlaShared with places of entries instead of boxes of keys.
template <typename Form>
struct ListedShared {
  static constexpr uint32_t kColumnGroups = Form::kWidth / 64;
  static constexpr uint32_t kRowGroupBytes = kColumnGroups * kGroupBytes;  // 8 rows
  static constexpr uint32_t kTileBytes = 8 * kRowGroupBytes;
  static constexpr bool kHasRotary = Form::kWidth > kMlaValueDim;

  alignas(1024) uint8_t q[kTileBytes];  // [8 row groups][width / 64][1024]
  // halves [8 row groups][4][1024], rotary [8][1024]
  alignas(1024) uint8_t kv[kStages][kTileBytes];
  alignas(1024) uint8_t p[64 * 64 * 2];  // [8 row groups][1024]
  MlaSplitNumbers split[2];              // by split parity
  MlaItem item[kItemSlots];
  // Where entries of tiles t and t + 1, or t + 1 and t + 2, lie behind the cache's beginning.
  alignas(16) uint32_t offsets[2][kMlaTileKeys];
  uint16_t alpha[kMlaTileRows];  // powers of two and 0, as bf16
  int epoch;
  uint64_t kv_full[kStages][2];  // columns 0-255; the others
  uint64_t kv_free[kStages][2];  // entries 0-31; 32-63
  uint64_t p_full;
  uint64_t p_empty;
  uint64_t split_full;  // the numbers of a split's end
  uint64_t q_full;
};

/// Copies an item's queries, as IssueQueries of mla_decode_loads.cuh.
template <typename Form>
__device__ __forceinline__ void IssueListedQueries(const MlaTensorMaps& maps,
                                                   ListedShared<Form>& shared,
                                                   const MlaItem& item) {
  if (item.request < 0) return;
  const int groups = (item.num_rows() + 7) / 8;
  BarrierArriveExpect(&shared.q_full, groups * ListedShared<Form>::kRowGroupBytes);
#pragma unroll 1
  for (int i = 0; i < groups; ++i) {
    TensorLoad4d(shared.q + i * ListedShared<Form>::kRowGroupBytes, &maps.q, &shared.q_full,
                 kEvictNormal, 0, item.first_row + 8 * i, 0, 0);
  }
}

/// The walk over this block's tiles, ahead of the computation. All lanes of one warp. Every tile is
/// passed through Find, Resolve and Store, one call of Step apart.
template <typename Form>
class ListWalk {
  using Arguments = typename Form::Arguments;
  using Shared = ListedShared<Form>;

 public:
  /// Takes the first item and stores the offsets of the first kStages tiles. The kernels before
  /// this one have finished.
  __device__ void Begin(const Arguments& args, Shared& shared) {
    const MlaCounters* counters = args.mla.workspace.counters;
    num_items_ = __ldcg(&counters->num_items);
    late_claims_ = __ldcg(&counters->late_claims) != 0;
    shared.epoch = __ldcg(&counters->epoch);
    Fetch(args, static_cast<int>(blockIdx.x));
    Find(args, shared);
    Resolve(args);
    for (uint32_t tile = 0; tile < kStages; ++tile) {
      Find(args, shared);
      Store(args, shared, tile);
      Resolve(args);
    }
    Find(args, shared);
  }

  /// Stores the offsets of the tile kStages after `tile_count`, whose place those of `tile_count`
  /// leave: its entries have all been asked for. Moves the two tiles after on.
  __device__ void Step(const Arguments& args, Shared& shared, uint32_t tile_count) {
    Store(args, shared, tile_count + kStages);
    Resolve(args);
    if (tiles_ > 0 && claimed_ && !late_claims_) Fetch(args, __shfl_sync(~0u, next_index_, 0));
    Find(args, shared);
  }

 private:
  /// Asks for a tile's entries.
  __device__ void Find(const Arguments& args, Shared& shared) {
    if (tiles_ == 0) Enter(args, shared);
    entries_[0] = entries_[1] = -1;
    found_ = tiles_ > 0;
    if (!found_) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int place = place_ + lane + 32 * i;
      if (place < count_) entries_[i] = Form::Find(args, list_, row_, place);
    }
    place_ += kMlaTileKeys;
    if (--tiles_ == 0 && late_claims_) Claim(args);
  }
  /// Asks for the pages of the entries that were found.
  __device__ void Resolve(const Arguments& args) {
    exists_ = found_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      resolved_[i] = entries_[i];
      if (entries_[i] >= 0) pages_[i] = Form::FindPage(args, list_, entries_[i]);
    }
  }
  __device__ void Store(const Arguments& args, Shared& shared, uint32_t tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t offset = Form::Offset(args, pages_[i], resolved_[i]);
      if (resolved_[i] < 0) offset = kNoEntry;
      if (!exists_) offset = kNoTile;
      shared.offsets[tile % 2][lane + 32 * i] = offset;
    }
  }
  /// Asks for an item's record, a word per lane.
  __device__ void Fetch(const Arguments& args, int index) {
    claimed_ = false;
    // The list has room for indices past its end.
    record_ =
        __ldcg(reinterpret_cast<const int*>(args.mla.workspace.items + index) + threadIdx.x % 8);
    past_end_ = index >= num_items_;
  }
  /// Takes the next item's number: when an item is entered, or, where items differ much in length,
  /// with the last of its tiles (LoadWalk of mla_decode_loads.cuh).
  __device__ void Claim(const Arguments& args) {
    if (threadIdx.x % 32 == 0) {
      next_index_ = gridDim.x + atomicAdd(&args.mla.workspace.counters->next_item, 1);
    }
    claimed_ = true;
  }
  /// Publishes the item that was fetched; nothing after the last.
  __device__ void Enter(const Arguments& args, Shared& shared) {
    if (ended_) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (claimed_) Fetch(args, __shfl_sync(~0u, next_index_, 0));
    if (past_end_) record_ = -1;
    if (lane < 8) {
      reinterpret_cast<int*>(&shared.item[item_count_ % kItemSlots])[lane] = record_;
    }
    ++item_count_;
    row_ = __shfl_sync(~0u, record_, 0);
    place_ = __shfl_sync(~0u, record_, 1);
    const int end = __shfl_sync(~0u, record_, 2);
    count_ = __shfl_sync(~0u, record_, 6);
    ended_ = row_ < 0;
    if (ended_) return;
    tiles_ = (end - place_ + kMlaTileKeys - 1) / kMlaTileKeys;
    list_ = Form::Enter(args, row_);
    if (!late_claims_) Claim(args);
  }

  int num_items_ = 0;
  // The item.
  int tiles_ = 0;  // not yet found
  int row_ = -1;
  typename Form::Row list_;
  int place_ = 0;  // of the next tile
  int count_ = 0;  // of the list
  uint32_t item_count_ = 0;
  // The next item.
  int record_ = -1;
  int next_index_ = 0;
  bool past_end_ = false;
  bool late_claims_ = false;
  bool claimed_ = false;  // next_index_ is on its way
  bool ended_ = false;
  // This lane's places lane and lane + 32: of the tile that was found, of the one before.
  bool found_ = false;
  int entries_[2];
  bool exists_ = false;
  int pages_[2] = {0, 0};
  int resolved_[2];
};

/// Copies 16 bytes, or writes 16 zeros.
template <typename Form>
__device__ __forceinline__ void CopyOrZero(uint32_t destination,
                                           const typename Form::Arguments& args, int in_entry,
                                           uint32_t offset) {
  const bool exists = offset < kNoTile;
  const uint8_t* source = Form::At(args, exists ? offset : 0u) + in_entry;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(exists ? 16 : 0)
               : "memory");
}
/// This thread's arrival, once all that it copies is there.
__device__ __forceinline__ void ArriveWithCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

/// Gathers this block's tiles, each half of a stage once it is free: 8 of the half's 32 entries per
/// warp. All threads of the gathering warpgroup.
template <typename Form>
__device__ __forceinline__ void GatherEntries(const typename Form::Arguments& args,
                                              ListedShared<Form>& shared) {
  constexpr uint32_t kStageStride = ListedShared<Form>::kTileBytes;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % kGatherThreads / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Row i of its group of 8: 128 bytes each, the chunk of 16 bytes swizzled by the row.
  const uint32_t in_stage =
      SharedAddress(shared.kv) + warp * 4 * kGroupBytes + lane / 8 * kGroupBytes + lane % 8 * 16;
  const uint32_t rotary_in_stage = SharedAddress(shared.kv) + 2 * kHalfBytes + warp * kGroupBytes +
                                   lane / 8 * 128 + ((lane % 8) ^ (lane / 8)) * 16;
  const int in_part = lane * 16;  // of 512 bytes
#pragma unroll 1
  for (uint32_t tile = 0;; ++tile) {
    const uint32_t stage = tile % kStages;
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
      BarrierWait(&shared.kv_free[stage][half], (tile / kStages & 1) ^ 1);
      const uint32_t* offsets = shared.offsets[stage];
      if (offsets[0] == kNoTile) return;
      offsets += 32 * half + 8 * warp;
      const uint32_t to = in_stage + stage * kStageStride + half * 16 * kGroupBytes;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(offsets + i);
          const uint32_t at = to + part * kHalfBytes;
          CopyOrZero<Form>(at ^ (i * 144), args, in_part + part * 512, four.x);
          CopyOrZero<Form>(at ^ ((i + 1) * 144), args, in_part + part * 512, four.y);
          CopyOrZero<Form>(at ^ ((i + 2) * 144), args, in_part + part * 512, four.z);
          CopyOrZero<Form>(at ^ ((i + 3) * 144), args, in_part + part * 512, four.w);
        }
        if (ListedShared<Form>::kHasRotary && part == 1) {
          // A lane copies 16 bytes of the rotary part of two entries.
          const uint32_t rotary = rotary_in_stage + stage * kStageStride + half * 4 * kGroupBytes;
          const int from = 1024 + lane % 8 * 16;
          CopyOrZero<Form>(rotary, args, from, offsets[lane / 8]);
          CopyOrZero<Form>((rotary ^ 64) + 512, args, from, offsets[lane / 8 + 4]);
        }
        if (half == 1) ArriveWithCopies(&shared.kv_full[stage][part]);
      }
    }
  }
}

}  // namespace outrider::cuda
