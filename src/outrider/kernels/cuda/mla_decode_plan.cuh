// The plan of an MLA decode step, built by one block on the device.
//
// Rows (token, head) of each request are cut into tiles of 64. A tile's keys are its splits' up to
// the last key that any of its rows sees. A tile that costs no more than a fair share of the whole
// step (total / blocks) is one item: its block folds the splits as it goes and writes the output.
// Of a longer tile the first splits, up to the share, are one item and every later split is an item
// of its own; these leave partial results that the combine kernel folds in the same order with the
// same arithmetic, so the cut does not show in the bits. Items are listed longest first (32 cost
// classes); the order within a class is up to the hardware and changes nothing but the schedule.
#pragma once

#include "outrider/kernels/cuda/mla_decode_layout.cuh"

namespace outrider::cuda {

struct MlaPlanArguments {
  const int* query_start_loc;
  const int* seq_lens;
  int num_requests;
  int heads;
  int blocks;
  bool causal;
  bool relaxed;
  MlaSplits splits;
  MlaWorkspace workspace;
};

inline constexpr int kPlanThreads = 1024;
inline constexpr int kPlanClasses = 32;
// What an item costs beside its keys, in keys: query load, first tiles, epilogue.
inline constexpr int kItemCost = 128;

__device__ __forceinline__ int KeysOfTile(int row_begin, int row_end, int heads, int seq_len,
                                          int query_len, bool causal) {
  const int last_token = (row_end - 1) / heads;
  return max(0, causal ? seq_len - query_len + last_token + 1 : seq_len);
}

__device__ __forceinline__ int CostClass(int keys, int longest) {
  // Class 0 is the longest.
  const int scaled = static_cast<int>(static_cast<long long>(keys) * kPlanClasses / (longest + 1));
  return kPlanClasses - 1 - min(kPlanClasses - 1, scaled);
}

__global__ void __launch_bounds__(kPlanThreads, 1) PlanMlaDecode(MlaPlanArguments args) {
  __shared__ unsigned long long total_cost;
  __shared__ int longest;
  __shared__ int class_count[kPlanClasses];
  __shared__ int used_units;
  __shared__ int num_fold_tiles;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread < kPlanClasses) class_count[thread] = 0;
  if (thread == 0) {
    total_cost = 0;
    longest = 1;
    used_units = 0;
    num_fold_tiles = 0;
  }
  __syncthreads();

  for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
    const int query_begin = args.query_start_loc[request];
    const int query_len = args.query_start_loc[request + 1] - query_begin;
    const int rows = query_len * args.heads;
    const int seq_len = args.seq_lens[request];
    unsigned long long cost = 0;
    for (int row = lane * kMlaTileRows; row < rows; row += 32 * kMlaTileRows) {
      const int row_end = min(row + kMlaTileRows, rows);
      cost += KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal) + kItemCost;
    }
    if (cost != 0) {
      atomicAdd(&total_cost, cost);
      if (lane == 0) atomicMax(&longest, seq_len);
    }
  }
  __syncthreads();
  const int share = static_cast<int>(
      min(1ull << 30, (total_cost + args.blocks - 1) / static_cast<unsigned>(args.blocks)));

  // First pass: cut the tiles, count items per class. Second pass: write the items. The same lane
  // sees the same tile in both.
  for (int pass = 0; pass < 2; ++pass) {
    for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
      const int query_begin = args.query_start_loc[request];
      const int query_len = args.query_start_loc[request + 1] - query_begin;
      const int rows = query_len * args.heads;
      const int seq_len = args.seq_lens[request];
      const int tile_base = query_begin * args.heads / kMlaTileRows + request;
      for (int row = lane * kMlaTileRows; row < rows; row += 32 * kMlaTileRows) {
        const int row_end = min(row + kMlaTileRows, rows);
        const int tile_rows = row_end - row;
        const int units = (tile_rows + kMlaUnitRows - 1) / kMlaUnitRows;
        int4* plan = &args.workspace.tile_plans[tile_base + row / kMlaTileRows];
        const int keys = KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal);
        if (pass == 0) {
          int head_end = keys;
          int tail_size = 0;  // relaxed: keys of each later item
          int tails = 0;
          if (keys + kItemCost > share + share / 8) {
            if (args.relaxed) {
              const int pieces = (keys + kItemCost + share - 1) / share;
              tail_size = ((keys + pieces - 1) / pieces + 127) / 128 * 128;
              head_end = min(keys, tail_size);
              tails = (keys - head_end + tail_size - 1) / tail_size;
            } else {
              int head_splits = max(1, CountSplits(args.splits, max(1, share - kItemCost)));
              if (SplitBegin(args.splits, head_splits) > share && head_splits > 1) --head_splits;
              head_end = min(keys, SplitBegin(args.splits, head_splits));
              tails = CountSplits(args.splits, keys) - CountSplits(args.splits, head_end);
            }
          }
          int unit = -1;
          if (tails > 0) {
            const int need = (tails + 1) * units;
            unit = atomicAdd(&used_units, need);
            if (unit + need > args.workspace.num_units) {  // no room: leave the tile whole
              head_end = keys;
              tails = 0;
              unit = -1;
            }
          }
          *plan = make_int4(head_end, tails, unit, tail_size);
          atomicAdd(&class_count[CostClass(head_end, longest)], 1);
          int begin = head_end;
          for (int i = 0; i < tails; ++i) {
            const int end =
                min(keys, args.relaxed ? begin + tail_size : NextSplit(args.splits, begin));
            atomicAdd(&class_count[CostClass(end - begin, longest)], 1);
            begin = end;
          }
        } else {
          const int head_end = plan->x;
          const int tails = plan->y;
          const int first_unit = plan->z;
          const int tail_size = plan->w;
          MlaItem item;
          item.request = request;
          item.first_row = query_begin * args.heads + row;
          item.rows = tile_rows | (row << 8);
          item.seq_len = seq_len;
          item.context = seq_len - query_len;
          int begin = 0;
          for (int i = 0; i <= tails; ++i) {
            const int end =
                i == 0 ? head_end
                       : min(keys, args.relaxed ? begin + tail_size : NextSplit(args.splits, begin));
            item.key_begin = begin;
            item.key_end = end;
            item.partial_unit = tails == 0 ? -1 : first_unit + i * units;
            const int slot = atomicAdd(&class_count[CostClass(end - begin, longest)], 1);
            args.workspace.items[slot] = item;
            begin = end;
          }
          if (tails > 0) {
            MlaFoldTile fold = {};
            fold.first_row = item.first_row;
            fold.rows = tile_rows;
            fold.first_unit = first_unit;
            fold.count = tails + 1;
            args.workspace.fold_tiles[atomicAdd(&num_fold_tiles, 1)] = fold;
          }
        }
      }
    }
    __syncthreads();
    if (pass == 0) {
      if (thread == 0) {
        int sum = 0;
        for (int i = 0; i < kPlanClasses; ++i) {
          const int count = class_count[i];
          class_count[i] = sum;
          sum += count;
        }
        args.workspace.counters->num_items = sum;
        args.workspace.counters->next_item = 0;
      }
      __syncthreads();
    }
  }
  if (thread == 0) {
    args.workspace.counters->num_fold_tiles = num_fold_tiles;
    args.workspace.counters->used_units = used_units;
  }
}

}  // namespace outrider::cuda
