// What the roles of an MLA decode block share: kernel arguments, the layout of shared memory, and
// the walk over an item's tiles and splits. mla_decode_bf16.cuh tells the whole algorithm.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_columns.cuh"

namespace outrider::cuda {

struct MlaKernelArguments {
  MlaWorkspace workspace;
  const int* block_table;
  int block_table_stride;
  const uint8_t* cache;  // e4m3
  int page_shift;        // log2 of the page size
  int heads;
  float score_scale;  // softmax_scale * cache_scale * log2(e)
  float value_scale;
  const float* sink;
  const uint32_t* visible;
  __nv_bfloat16* output;
  float* lse;
  MlaSplits splits;
  bool plan_settled;  // MlaDecodeParams
};

struct MlaTensorMaps {
  CUtensorMap q;          // box 64 columns, 8 rows from any on, 9 column groups
  CUtensorMap kv_half;    // box 64, 8, 4, min(page, 32) / 8, 1
  CUtensorMap kv_rotary;  // box 64, 8, 1, min(page, 64) / 8, 1
};

/// Where keys lie: a page, and a group of 8 keys in it, as one number.
__device__ __forceinline__ int KeyPlace(int page, int in_page) {
  return page << kMlaGroupBits | in_page >> 3;
}

/// Copies the box of keys at `place`, from a group of columns on.
__device__ __forceinline__ void LoadKeys(void* destination, const CUtensorMap* map,
                                         uint64_t* barrier, int column_group, int place) {
  TensorLoad5d(destination, map, barrier, kEvictFirst, 0, 0, column_group,
               place & ((1 << kMlaGroupBits) - 1), place >> kMlaGroupBits);
}

inline constexpr int kOutputThreads = 256;  // warpgroups 0 and 1
inline constexpr int kScoreThreads = 128;   // warpgroup 2
inline constexpr int kStages = 2;
inline constexpr int kMlaThreads = kOutputThreads + kScoreThreads;
inline constexpr int kLoadWarp = kOutputThreads / 32;  // the first of the scores
inline constexpr int kItemSlots = 8;  // the walk over loads is three tiles ahead, so three items
inline constexpr int kLoadSlots = 16;
inline constexpr uint32_t kGroupBytes = 1024;  // 8 rows of 64 columns
inline constexpr uint32_t kQBytes = 64 * kMlaKeyDim * 2;
inline constexpr uint32_t kHalfBytes = 64 * 256 * 2;
inline constexpr uint32_t kRotaryBytes = 64 * 64 * 2;
inline constexpr uint32_t kStageBytes = 2 * kHalfBytes + kRotaryBytes;

/// What folds a split's result, by row, from whoever has the rows' sums to those who have their
/// columns.
struct MlaSplitNumbers {
  float normal[kMlaTileRows];  // accumulator to columns: 2^-exponent
  float2 fold[kMlaTileRows];   // FoldRow's factors {keep, add}
  float factor[kMlaTileRows];  // columns to output, where the split's end writes it
};

struct MlaShared {
  alignas(1024) uint8_t q[kQBytes];  // [8 row groups][9][1024]
  alignas(
      1024) uint8_t kv[kStages][kStageBytes];  // halves [8 row groups][4][1024], rotary [8][1024]
  alignas(1024) uint8_t p[64 * 64 * 2];        // [8 row groups][1024]
  float alpha[kMlaTileRows];
  MlaSplitNumbers split[2];  // by split parity
  MlaItem item[kItemSlots];
  int load[kLoadSlots][4];  // places of a tile's keys 0, 16, 32, 48 in the cache, -1: no tile
  int epoch;
  uint64_t kv_full[kStages][3];
  uint64_t p_full;
  uint64_t p_empty;
  uint64_t split_full;  // the numbers of a split's end
  uint64_t q_full;
};

/// An item of which lanes 0 to 7 of a warp have a word each, by way of shuffles: the compiler then
/// knows that all lanes have the same and keeps it in uniform registers.
__device__ __forceinline__ MlaItem ItemOfWords(int word) {
  MlaItem item;
  int* fields = reinterpret_cast<int*>(&item);
#pragma unroll
  for (int i = 0; i < 8; ++i) fields[i] = __shfl_sync(~0u, word, i);
  return item;
}
__device__ __forceinline__ MlaItem TakeItem(const MlaItem& slot) {
  return ItemOfWords(reinterpret_cast<const int*>(&slot)[threadIdx.x % 8]);
}

// Named barriers.
inline constexpr int kScoresBarrier = 1;
inline constexpr int kOutputsBarrier = 2;  // and 3
inline constexpr int kResultsBarrier = 4;

/// The tiles of an item and where its splits end; scores and outputs walk it alike.
struct SplitWalk {
  int tiles;
  int split_end;
  bool first_in_split = true;
  bool first_split = true;  // nothing has been folded yet
  int emitted = 0;          // partial results left so far

  __device__ SplitWalk(const MlaItem& item, const MlaSplits& splits) {
    tiles = (item.key_end - item.key_begin + kMlaTileKeys - 1) / kMlaTileKeys;
    split_end =
        splits.base == 0 ? item.key_end : min(item.key_end, NextSplit(splits, item.key_begin));
    first_split = !item.is_second_part();
  }
  /// Whether a tile whose keys end before `key` is the split's last.
  __device__ bool Ends(int key) const { return key >= split_end; }
  __device__ bool Last(const MlaItem& item) const { return split_end >= item.key_end; }
  /// Whether the split's end gives a result: always for an item that begins later than its request
  /// and leaves partial results.
  __device__ bool Emits(const MlaItem& item) const {
    return Last(item) || (item.key_begin > 0 && item.leaves_partials());
  }
  __device__ void Advance(const MlaItem& item, const MlaSplits& splits) {
    first_split = Emits(item);
    emitted += first_split;
    first_in_split = true;
    if (!Last(item)) split_end = min(item.key_end, NextSplit(splits, split_end));
  }
  /// Where row `row` of the result goes among the partial results.
  __device__ size_t PartialRow(const MlaItem& item, int rows, int row) const {
    const int units = (rows + kMlaUnitRows - 1) / kMlaUnitRows;
    const int first = item.unit();
    return static_cast<size_t>(first + emitted * units) * kMlaUnitRows + row;
  }
};

}  // namespace outrider::cuda
