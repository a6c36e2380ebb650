// What the plan and the kernel of grouped-query attention share: splits, the work list's records
// and where they lie in the workspace.
#pragma once

#include "outrider/kernels/cuda/gqa/gqa_attention.h"

namespace outrider::cuda {

/// The size of the split at `key`, as a power of two; splits begin at multiples of it. Part of a
/// row's arithmetic: short splits keep a lone request's latency down, long ones the cost of
/// folding.
__device__ __forceinline__ int GqaSplitShift(int key) {
  return key < 1024 ? 7 : key < 4096 ? 8 : key < 16384 ? 9 : 10;
}
inline constexpr int kLeastGqaSplit = 128;

/// The split boundary at or before `key`.
__device__ __forceinline__ int GqaSplitBefore(int key) {
  const int shift = GqaSplitShift(key);
  return key >> shift << shift;
}

/// First split boundary after `key`.
__device__ __forceinline__ int NextGqaSplit(int key) {
  return GqaSplitBefore(key) + (1 << GqaSplitShift(key));
}

/// Number of splits that cover `keys` keys.
__device__ __forceinline__ int CountGqaSplits(int keys) {
  if (keys == 0) return 0;
  const int last = keys - 1;
  const int shift = GqaSplitShift(last);
  constexpr int kFirst = 1024 / 128;
  constexpr int kSecond = kFirst + (4096 - 1024) / 256;
  constexpr int kThird = kSecond + (16384 - 4096) / 512;
  const int start = shift == 7 ? 0 : shift == 8 ? 1024 : shift == 9 ? 4096 : 16384;
  const int before = shift == 7 ? 0 : shift == 8 ? kFirst : shift == 9 ? kSecond : kThird;
  return before + ((last - start) >> shift) + 1;
}

/// One piece of the work of every key head: tokens of a request against keys [key_begin, key_end).
struct alignas(16) GqaItem {
  int request;  // -1: the end
  int first_row;
  int tokens;
  int position;   // of the first token
  int key_begin;  // a multiple of 64
  int key_end;
  // A tile that is cut leaves partial results, which are folded in order of position:
  int cut;         // its number among the cut tiles, or -1: this item writes the output
  int pieces;      // that it is cut into
  int first_unit;  // of its results, those of all key heads
  int partials;    // results of one key head
  int partial;     // the first that this item leaves: the first piece one, others one per split
  int head;        // the key head; filled in when the item is taken
};

/// Rows of a unit of partial results.
inline constexpr int kGqaUnitRows = 8;
inline constexpr int kMaxGqaUnits = 16384;  // 4 KB each

struct GqaCounters {
  int num_items;  // of all key heads
  int next_item;  // beyond the first of each block; the end of a run sets it back to 0
  int left_blocks;
};

/// Pointers into the workspace.
struct GqaWorkspace {
  GqaCounters* counters;
  GqaItem* items;
  // Scratch of the plan: by tile its number among those that are cut, or -1; those, with how many
  // pieces there are as `head` and the splits of the first as `partial`.
  int* tile_cuts;
  GqaItem* cut_tiles;
  int* arrived;    // [cut tiles, kv_heads]: pieces that have left their results; 0 between runs
  float2* stats;   // [units, 8]: reference (log2 domain) and sum
  float* outputs;  // [units, 8, 128], not divided by the sum
  size_t bytes;
};

struct GqaPlanArguments {
  GqaWorkspace workspace;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int num_requests;
  int kv_heads;
  int window;
  int tile_tokens;  // of a block
  int row_heads;    // query heads per key head
  int blocks;       // that run at a time
};

}  // namespace outrider::cuda
