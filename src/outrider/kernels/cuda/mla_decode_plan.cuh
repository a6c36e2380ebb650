// The plan of an MLA decode step, built by one block on the device.
//
// Rows (token, head) of each request are cut into tiles of 64 (e4m3: 32). A tile's keys are its
// splits' up to the last key that any of its rows sees. A tile that costs no more than a fair share
// of the whole step (total / blocks) is one item: its block folds the splits as it goes and writes
// the output. A longer tile is cut into equal items of about a share each. The first of them folds
// its splits; a later one leaves one partial result per split, and they are folded later in
// the same order with the same arithmetic, so the cut does not show in the bits. Where whole tiles
// would leave many blocks idle in the last round (141 tiles on 132 blocks), those left over are cut
// finely instead. Items are listed longest first (32 cost classes); the order within a class is up
// to the hardware and changes nothing but the schedule.
#pragma once

#include "outrider/kernels/cuda/mla_decode_layout.cuh"

namespace outrider::cuda {

struct MlaPlanArguments {
  const int* query_start_loc;
  const int* seq_lens;
  int num_requests;
  int heads;
  int tile_rows;  // of the body that runs
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

/// Where piece `index` of `pieces` (at most 2048; keys at most 2^20) ends: a split's end (relaxed:
/// any even tile) near the even cut.
__device__ __forceinline__ int PieceEnd(const MlaPlanArguments& args, int keys, int pieces,
                                        int index) {
  if (index + 1 == pieces) return keys;
  const int even = static_cast<int>(static_cast<unsigned>(keys) * (index + 1) / pieces);
  return min(keys, args.relaxed ? (even + 64) / 128 * 128 : NearestSplit(args.splits, even));
}

/// Pieces for a tile of which one should have about `piece` keys: a few more than the quotient
/// where rounding to splits would make one much longer.
__device__ __forceinline__ int CountPieces(const MlaPlanArguments& args, int keys, int piece) {
  const int wanted = (keys + piece - 1) / piece;
  const int most = args.relaxed ? (keys + 127) / 128 : CountSplits(args.splits, keys);
  if (wanted >= most) return max(1, most);
  const int limit = (keys / wanted) + (keys / wanted) / 8;
  int pieces = wanted;
  for (; pieces <= min(most, wanted + 4); ++pieces) {
    int begin = 0;
    int longest = 0;
    for (int i = 0; i < pieces; ++i) {
      const int end = PieceEnd(args, keys, pieces, i);
      longest = max(longest, end - begin);
      begin = end;
    }
    if (longest <= limit) return pieces;
  }
  return wanted;
}

__global__ void __launch_bounds__(kPlanThreads, 1) PlanMlaDecode(MlaPlanArguments args) {
  __shared__ unsigned long long total_cost;
  __shared__ int longest;
  __shared__ int class_count[kPlanClasses];
  __shared__ int used_units;
  __shared__ int num_fold_tiles;
  __shared__ int whole;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread < kPlanClasses) class_count[thread] = 0;
  if (thread == 0) {
    total_cost = 0;
    longest = 1;
    used_units = 0;
    num_fold_tiles = 0;
    whole = 0;
  }
  __syncthreads();

  for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
    const int query_begin = args.query_start_loc[request];
    const int query_len = args.query_start_loc[request + 1] - query_begin;
    const int rows = query_len * args.heads;
    const int seq_len = args.seq_lens[request];
    unsigned long long cost = 0;
    for (int row = lane * args.tile_rows; row < rows; row += 32 * args.tile_rows) {
      const int row_end = min(row + args.tile_rows, rows);
      cost += KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal) + kItemCost;
    }
    if (cost != 0) {
      atomicAdd(&total_cost, cost);
      if (lane == 0) atomicMax(&longest, seq_len);
    }
  }
  __syncthreads();
  // A tenth more than the exact share, so that rounding to whole splits does not start a new round.
  const int share = static_cast<int>(
      min(1ull << 30, total_cost * 11 / 10 / static_cast<unsigned>(args.blocks) + 1));

  // Tiles that stay whole, numbered by `whole`; the last incomplete round of them is cut finely.
  for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
    const int query_begin = args.query_start_loc[request];
    const int query_len = args.query_start_loc[request + 1] - query_begin;
    const int rows = query_len * args.heads;
    const int seq_len = args.seq_lens[request];
    const int tile_base = query_begin * args.heads / args.tile_rows + request;
    for (int row = lane * args.tile_rows; row < rows; row += 32 * args.tile_rows) {
      const int row_end = min(row + args.tile_rows, rows);
      const int keys = KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal);
      const bool large = keys + kItemCost > share / 8;
      const bool fits = keys + kItemCost <= share;
      args.workspace.tile_plans[tile_base + row / args.tile_rows].x =
          large && fits ? atomicAdd(&whole, 1) : -1;
    }
  }
  __syncthreads();
  const int rounds = (whole + args.blocks - 1) / args.blocks;
  const bool uneven = whole > args.blocks && rounds * args.blocks > whole + whole / 8;
  const int whole_limit = uneven ? (rounds - 1) * args.blocks : whole;

  // First pass: cut the tiles, count items per class. Second pass: write the items. The same lane
  // sees the same tile in both.
  for (int pass = 0; pass < 2; ++pass) {
    for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
      const int query_begin = args.query_start_loc[request];
      const int query_len = args.query_start_loc[request + 1] - query_begin;
      const int rows = query_len * args.heads;
      const int seq_len = args.seq_lens[request];
      const int tile_base = query_begin * args.heads / args.tile_rows + request;
      for (int row = lane * args.tile_rows; row < rows; row += 32 * args.tile_rows) {
        const int row_end = min(row + args.tile_rows, rows);
        const int tile_rows = row_end - row;
        const int units = (tile_rows + kMlaUnitRows - 1) / kMlaUnitRows;
        int4* plan = &args.workspace.tile_plans[tile_base + row / args.tile_rows];
        const int keys = KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal);
        if (pass == 0) {
          int pieces = 1;
          if (plan->x >= whole_limit) {
            pieces = CountPieces(args, keys, share / 8 + 1);
          } else if (keys + kItemCost > share) {
            const int wanted = (keys + kItemCost + share - 1) / share;
            pieces = CountPieces(args, keys, (keys + wanted - 1) / wanted);
          }
          int unit = -1;
          int partials = 0;
          if (pieces > 1) {
            int previous = 0;
            for (int i = 0; i < pieces; ++i) {
              const int end = PieceEnd(args, keys, pieces, i);
              if (end == previous) continue;
              // The first item folds its splits.
              partials += args.relaxed || previous == 0
                              ? 1
                              : CountSplits(args.splits, end) - CountSplits(args.splits, previous);
              previous = end;
            }
            unit = partials > 1 ? atomicAdd(&used_units, partials * units) : 0;
            if (partials == 1 || unit + partials * units > args.workspace.num_units) {
              pieces = 1;  // nothing to cut, or no room
              partials = 0;
              unit = -1;
            }
          }
          *plan = make_int4(pieces, partials, unit, 0);
          int begin = 0;
          for (int i = 0; i < pieces; ++i) {
            const int end = PieceEnd(args, keys, pieces, i);
            if (end > begin) atomicAdd(&class_count[CostClass(end - begin, longest)], 1);
            begin = end;
          }
        } else {
          const int pieces = plan->x;
          const int partials = plan->y;
          MlaItem item;
          item.request = request;
          item.first_row = query_begin * args.heads + row;
          item.rows = tile_rows | (row << 8);
          item.seq_len = seq_len;
          item.context = seq_len - query_len;
          item.partial_unit = plan->z;
          int begin = 0;
          int items = 0;
          for (int i = 0; i < pieces; ++i) {
            const int end = PieceEnd(args, keys, pieces, i);
            if (end == begin) continue;
            ++items;
            item.key_begin = begin;
            item.key_end = end;
            const int slot = atomicAdd(&class_count[CostClass(end - begin, longest)], 1);
            args.workspace.items[slot] = item;
            if (partials > 0) {
              item.partial_unit +=
                  units * (begin == 0 || args.relaxed
                               ? 1
                               : CountSplits(args.splits, end) - CountSplits(args.splits, begin));
            }
            begin = end;
          }
          if (partials > 0 || keys == 0) {  // rows without keys are written there too
            MlaFoldTile fold = {};
            fold.first_row = item.first_row;
            fold.rows = tile_rows;
            fold.first_unit = plan->z;
            fold.count = partials;
            fold.items = items;
            fold.plan = tile_base + row / args.tile_rows;
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
        args.workspace.counters->epoch = 0;
        args.workspace.counters->left_blocks = 0;
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
