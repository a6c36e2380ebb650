// The plan of an MLA decode step: the list of work items, made by one block on the device.
//
// A tile is 64 (e4m3: 32) rows of one request; a row is a (token, head) pair. An item is a range of
// keys of one tile, which one block computes. A split is a fixed range of key positions with a
// softmax of its own (MlaSplits), and items begin and end at splits.
//
// 1. A fair share is total cost / blocks. A tile that costs at most a fair share is one item. Its
//    block folds the splits in order as it goes, and writes the output.
// 2. A longer tile is cut into items of about one share. The first folds its splits. Each later one
//    leaves one partial result per split, for which the first may be longer (PieceEnds). The
//    partial results are folded afterwards, in the same order with the same arithmetic. So the cut
//    does not change any bit.
// 3. Whole tiles may leave many blocks idle in the last round (141 tiles on 132 blocks).
//    bf16: the tiles are laid end to end and cut where a block's share ends (SharePosition). The
//    second part of such a tile continues from the result of the first. It is the last work of its
//    block and the first part is the first work of another block, so that result exists by then.
//    e4m3: the tiles of the last round are cut into small items.
//
// Items are listed longest first, in 32 classes of cost. Their order within a class depends on
// timing; it changes the schedule and no result.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_cuts.cuh"

namespace outrider::cuda {

inline constexpr int kPlanThreads = 1024;
inline constexpr int kPlanClasses = 32;
// Sections of the list: first parts of shared tiles, classes of items, classes of second parts.
inline constexpr int kListClasses = 1 + 2 * kPlanClasses;

__device__ __forceinline__ int KeysOfTile(int row_begin, int row_end, int heads, int seq_len,
                                          int query_len, bool causal) {
  const int last_token = (row_end - 1) / heads;
  return max(0, causal ? seq_len - query_len + last_token + 1 : seq_len);
}

__device__ __forceinline__ int CostClass(int keys, int longest) {
  // Class 1 is the longest.
  const float scaled = __fdividef(static_cast<float>(keys * kPlanClasses), longest + 1.0f);
  return kPlanClasses - min(kPlanClasses - 1, __float2int_rz(scaled));
}

/// A row tile of a request.
struct PlanTile {
  int request;
  int query_begin;
  int query_len;
  int seq_len;
  int row;    // first, in the request
  int rows;   // of the tile
  int keys;   // that it sees
  int index;  // TilePlanIndex

  __device__ __forceinline__ void SetRow(const MlaPlanArguments& args, int first) {
    row = first;
    const int end = min(row + args.tile_rows, query_len * args.heads);
    rows = end - row;
    keys = KeysOfTile(row, end, args.heads, seq_len, query_len, args.causal);
    index = query_begin * args.heads / args.tile_rows + request + row / args.tile_rows;
  }
  /// Rows, or 0 where the request has more tiles, whose keys are the same.
  __device__ __forceinline__ int OwnRows(const MlaPlanArguments& args) const {
    return query_len * args.heads == rows ? rows : 0;
  }
  __device__ __forceinline__ PieceEnds Ends(const MlaPlanArguments& args, int pieces) const {
    return {args, keys, OwnRows(args), pieces};
  }
  __device__ __forceinline__ int Units() const { return (rows + kMlaUnitRows - 1) / kMlaUnitRows; }
  __device__ __forceinline__ MlaItem Item(const MlaPlanArguments& args) const {
    MlaItem item;
    item.request = request;
    item.key_begin = 0;
    item.key_end = keys;
    item.partial_unit = -1;
    item.first_row = query_begin * args.heads + row;
    item.rows = rows | (row << 8);
    item.seq_len = seq_len;
    item.context = seq_len - query_len;
    return item;
  }
};

// The parts of PlanMlaDecode's two passes. The first pass counts items per class in `class_count`.
// In the second pass it holds the place of the next item of each class.

/// Stores how a tile is cut. It leaves plan.w alone, which other warps may be reading.
__device__ __forceinline__ void StoreCut(const MlaPlanArguments& args, const PlanTile& tile,
                                         MlaCut cut, int unit) {
  int4* plan = &args.workspace.tile_plans[tile.index];
  plan->x = cut.pieces;
  plan->y = cut.partials;
  plan->z = unit;
}

/// First pass, a tile that is one item: one lane.
__device__ __forceinline__ void CountWhole(const MlaPlanArguments& args, const PlanTile& tile,
                                           int* class_count, int longest) {
  StoreCut(args, tile, {1, 0}, -1);
  if (tile.keys > 0) atomicAdd(&class_count[CostClass(tile.keys, longest)], 1);
}

/// First pass, a tile that two items share: one lane. Its plan is {-position, 1, unit}.
__device__ __forceinline__ void CountShared(const MlaPlanArguments& args, const PlanTile& tile,
                                            int position, int* used_units, int* class_count,
                                            int longest) {
  const int unit = atomicAdd(used_units, tile.Units());
  if (unit + tile.Units() > args.workspace.num_units) {
    CountWhole(args, tile, class_count, longest);  // no room
    return;
  }
  StoreCut(args, tile, {-position, 1}, unit);
  atomicAdd(&class_count[0], 1);
  atomicAdd(&class_count[kPlanClasses + CostClass(tile.keys - position, longest)], 1);
}

/// Second pass, a tile that two items share: one lane.
__device__ __forceinline__ void WriteShared(const MlaPlanArguments& args, const PlanTile& tile,
                                            int4 plan, int* class_count, int longest) {
  args.workspace.tile_plans[tile.index].w = 0;
  MlaItem item = tile.Item(args);
  item.key_end = -plan.x;
  item.partial_unit = kMlaFirstPart + plan.z;
  args.workspace.items[atomicAdd(&class_count[0], 1)] = item;
  item.key_begin = item.key_end;
  item.key_end = tile.keys;
  item.partial_unit = -2 - plan.z;
  const int cost_class = kPlanClasses + CostClass(tile.keys + plan.x, longest);
  args.workspace.items[atomicAdd(&class_count[cost_class], 1)] = item;
}

/// Where the tiles of a request that `takes_part` are cut, or 0. Requests with the same number of
/// tiles are laid end to end on `lines[tiles]`, in any order, and cut at each multiple of `share`;
/// tiles of a request alike, so that they run at the same time and read keys once. All lanes.
__device__ __forceinline__ int SharePosition(const MlaPlanArguments& args, const PlanTile& tile,
                                             bool takes_part, unsigned* lines, unsigned share) {
  const uint32_t tiles = __ballot_sync(~0u, takes_part);
  if (tiles == 0) return 0;
  const unsigned cost = __shfl_sync(~0u, tile.keys, 31 - __clz(tiles)) + kItemCost;
  unsigned begin = 0;
  if (threadIdx.x % 32 == 0) begin = atomicAdd(&lines[__popc(tiles)], cost);
  begin = __shfl_sync(~0u, begin, 0);
  const unsigned end = begin + cost;
  const unsigned cut = end / share * share;
  if (cut <= begin) return 0;
  const int position = NearestSplit(args.splits, static_cast<int>(end - cut));
  return takes_part && position < tile.keys ? position : 0;
}

/// First pass, a tile that is cut, if there is room for its results: all lanes.
__device__ __forceinline__ void CutTile(const MlaPlanArguments& args, const PlanTile& tile,
                                        MlaCut cut, int* used_units, int* class_count,
                                        int longest) {
  const bool leader = threadIdx.x % 32 == 0;
  int unit = -1;
  if (cut.partials > 1) {
    if (leader) unit = atomicAdd(used_units, cut.partials * tile.Units());
    unit = __shfl_sync(~0u, unit, 0);
  }
  if (cut.partials <= 1 || unit + cut.partials * tile.Units() > args.workspace.num_units) {
    cut = {1, 0};  // nothing to cut, or no room
    unit = -1;
  }
  if (leader) StoreCut(args, tile, cut, unit);
#pragma unroll 1
  for (LanePieces lanes(args, tile.Ends(args, cut.pieces)); !lanes.Done(); lanes.Advance(args)) {
    const int length = lanes.end - lanes.begin;
    if (length > 0) atomicAdd(&class_count[CostClass(length, longest)], 1);
  }
}

/// Second pass, the fold of a tile in `items` items: one lane.
__device__ __forceinline__ void WriteFold(const MlaPlanArguments& args, const PlanTile& tile,
                                          int4 plan, int items, MlaFoldCount* folds) {
  args.workspace.tile_plans[tile.index].w = 0;
  MlaFoldTile fold = {};
  fold.first_row = tile.query_begin * args.heads + tile.row;
  fold.rows = tile.rows;
  fold.first_unit = plan.z;
  fold.count = plan.y;
  fold.items = items;
  fold.plan = tile.index;
  args.workspace.fold_tiles[atomicAdd(&folds->tiles, 1)] = fold;
  atomicMax(&folds->rows, tile.rows);
}

/// Second pass, a tile that is one item: one lane. Rows without keys are written by the fold.
__device__ __forceinline__ void WriteWhole(const MlaPlanArguments& args, const PlanTile& tile,
                                           int* class_count, int longest, MlaFoldCount* folds) {
  const MlaItem item = tile.Item(args);
  args.workspace.tile_plans[tile.index].w = 0;
  if (tile.keys > 0) {
    args.workspace.items[atomicAdd(&class_count[CostClass(tile.keys, longest)], 1)] = item;
    return;
  }
  WriteFold(args, tile, make_int4(0, 0, -1, 0), 0, folds);
}

/// Second pass, a tile in pieces (`plan`: pieces, partial results, first unit): every `stride`-th
/// from `first` on. Returns how many items that is.
__device__ __forceinline__ int WritePieces(const MlaPlanArguments& args, const PlanTile& tile,
                                           int4 plan, int first, int stride, int* class_count,
                                           int longest) {
  const PieceEnds ends = tile.Ends(args, plan.x);
  // Results before the split at `begin` > 0: one of the first piece, which folds its own.
  const int folded = CountSplits(args.splits, ends(args, 0)) - 1;
  MlaItem item = tile.Item(args);
  int items = 0;
#pragma unroll 1
  for (int i = first; i < plan.x; i += stride) {
    const int begin = i == 0 ? 0 : ends(args, i - 1);
    const int end = ends(args, i);
    if (end == begin) continue;
    const int before = begin == 0 ? 0 : args.relaxed ? i : CountSplits(args.splits, begin) - folded;
    item.key_begin = begin;
    item.key_end = end;
    item.partial_unit = plan.z + before * tile.Units();
    args.workspace.items[atomicAdd(&class_count[CostClass(end - begin, longest)], 1)] = item;
    ++items;
  }
  return items;
}

__global__ void __launch_bounds__(kPlanThreads, 1) PlanMlaDecode(MlaPlanArguments args) {
  __shared__ unsigned long long total_cost;
  __shared__ int tile_count;
  __shared__ int busy_requests;  // that have tiles
  __shared__ int longest;
  __shared__ int shortest;  // tile
  __shared__ int class_count[kListClasses];
  __shared__ unsigned lines[33];
  __shared__ int used_units;
  __shared__ MlaFoldCount folds;
  __shared__ int whole;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread < kListClasses) class_count[thread] = 0;
  if (thread < 33) lines[thread] = 0;
  if (thread == 0) {
    total_cost = 0;
    tile_count = 0;
    busy_requests = 0;
    longest = 1;
    shortest = 1 << 30;
    used_units = 0;
    folds = {0, 0};
    whole = 0;
  }
  __syncthreads();

  for (int request = warp; request < args.num_requests; request += kPlanThreads / 32) {
    const int query_begin = args.query_start_loc[request];
    const int query_len = args.query_start_loc[request + 1] - query_begin;
    const int rows = query_len * args.heads;
    const int seq_len = args.seq_lens[request];
    unsigned long long cost = 0;
    int tiles = 0;
    int least = 1 << 30;
    for (int row = lane * args.tile_rows; row < rows; row += 32 * args.tile_rows) {
      const int row_end = min(row + args.tile_rows, rows);
      const int keys = KeysOfTile(row, row_end, args.heads, seq_len, query_len, args.causal);
      cost += keys + kItemCost;
      least = min(least, keys);
      ++tiles;
    }
    if (cost != 0) {
      atomicAdd(&total_cost, cost);
      atomicAdd(&tile_count, tiles);
      atomicMin(&shortest, least);
      if (lane == 0) {
        atomicMax(&longest, seq_len);
        atomicAdd(&busy_requests, 1);
      }
    }
  }
  __syncthreads();
  // A tenth more than the exact share, so that rounding to whole splits does not start a new round.
  const int fair_share = static_cast<int>(
      min(1ull << 30, total_cost * 11 / 10 / static_cast<unsigned>(args.blocks) + 1));
  // Tiles alike are cut in as many pieces as one round has room for: of smaller ones a second round
  // would be begun, which takes longer.
  const bool similar = longest <= shortest + shortest / 4;
  const bool alike = tile_count > 0 && tile_count <= args.blocks && similar;
  const int room_each = alike ? args.blocks / tile_count : 1;
  // Where 3 blocks of 7 and more have a nearly full tile with keys of its own, halves would not be
  // faster: the results of a second half are nearly as many bytes as its keys.
  const int all_rows = args.query_start_loc[args.num_requests] * args.heads;
  const bool own_keys = args.tile_rows == kMlaTileRows && tile_count == busy_requests;
  const bool whole_tiles = own_keys && !args.relaxed && room_each == 2 &&
                           7 * tile_count >= 3 * args.blocks && all_rows >= 48 * tile_count;
  const int pieces_each = whole_tiles ? 1 : room_each;
  const int share =
      alike ? max(fair_share, (longest + kItemCost + pieces_each - 1) / pieces_each) : fair_share;

  // Tiles that stay whole, numbered by `whole`.
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
      args.workspace.tile_plans[tile_base + row / args.tile_rows].w =
          large && fits ? atomicAdd(&whole, 1) : -1;
    }
  }
  __syncthreads();
  const int rounds = (whole + args.blocks - 1) / args.blocks;
  const unsigned exact_share = max(1u, static_cast<unsigned>(share / 11 * 10));
  const bool uneven = whole > args.blocks && rounds * args.blocks > whole + whole / 8;
  const bool shared_tiles = uneven && args.shared_tiles;
  const bool fine_cuts = uneven && !shared_tiles;
  const int whole_limit = fine_cuts ? (rounds - 1) * args.blocks : whole;

  // First pass: cut the tiles, count items per class. Second pass: write the items. A lane per tile
  // that stays whole, a warp for each that does not; few requests have several warps each. Several
  // cut tiles of a request are written by a lane each, piece by piece: items of the same keys then
  // lie together in the list, run at the same time and read them from memory once.
  const int sharing = max(1, kPlanThreads / 32 / max(1, args.num_requests));
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
    for (int request = warp / sharing; request < args.num_requests;
         request += kPlanThreads / 32 / sharing) {
      PlanTile tile;
      tile.request = request;
      tile.query_begin = args.query_start_loc[request];
      tile.query_len = args.query_start_loc[request + 1] - tile.query_begin;
      tile.seq_len = args.seq_lens[request];
      const int rows = tile.query_len * args.heads;
      int turn = 0;  // over the warps that share the request
#pragma unroll 1
      for (int first_row = 0; first_row < rows; first_row += 32 * args.tile_rows) {
        tile.SetRow(args, first_row + lane * args.tile_rows);
        const bool exists = tile.row < rows;
        const int4 plan = exists ? args.workspace.tile_plans[tile.index] : make_int4(0, 0, -1, 0);
        const bool fine = plan.w >= whole_limit;
        const int wanted = (tile.keys + kItemCost + share - 1) / share;
        const bool uncut = pass == 0 ? tile.keys == 0 || (wanted == 1 && !fine) : plan.x <= 1;
        if (warp % sharing == 0) {
          int position = 0;
          if (pass == 0 && shared_tiles) {
            position = SharePosition(args, tile, exists && plan.w >= 0, lines, exact_share);
          }
          if (exists && uncut) {
            if (pass == 0 && position > 0) {
              CountShared(args, tile, position, &used_units, class_count, longest);
            } else if (pass == 0) {
              CountWhole(args, tile, class_count, longest);
            } else if (plan.x < 0) {
              WriteShared(args, tile, plan, class_count, longest);
            } else {
              WriteWhole(args, tile, class_count, longest, &folds);
            }
          }
        }
        uint32_t cut = __ballot_sync(~0u, exists && !uncut);
        if (pass == 1 && __popc(cut) > 1) {
          if (exists && !uncut && warp % sharing == 0) {
            const int items = WritePieces(args, tile, plan, 0, 1, class_count, longest);
            WriteFold(args, tile, plan, items, &folds);
          }
          continue;
        }
        for (; cut != 0; cut &= cut - 1) {
          if (turn++ % sharing != warp % sharing) continue;
          const int from = __ffs(static_cast<int>(cut)) - 1;
          PlanTile other = tile;
          other.SetRow(args, first_row + from * args.tile_rows);
          if (pass == 0) {
            const int pieces = __shfl_sync(~0u, wanted, from);
            const int piece = __shfl_sync(~0u, static_cast<int>(fine), from) != 0
                                  ? share / 8 + 1
                                  : (other.keys + pieces - 1) / pieces;
            const int room = alike ? pieces_each : other.keys;
            const MlaCut found = FindCut(args, other.keys, other.OwnRows(args), piece, room);
            CutTile(args, other, found, &used_units, class_count, longest);
          } else {
            const int4 cut_plan =
                make_int4(__shfl_sync(~0u, plan.x, from), __shfl_sync(~0u, plan.y, from),
                          __shfl_sync(~0u, plan.z, from), 0);
            const int items = WritePieces(args, other, cut_plan, lane, 32, class_count, longest);
            const int all_items = __reduce_add_sync(~0u, items);
            if (lane == 0) WriteFold(args, other, cut_plan, all_items, &folds);
          }
        }
      }
    }
    __syncthreads();
    if (pass == 0) {
      if (thread == 0) {
        int sum = 0;
        for (int i = 0; i < kListClasses; ++i) {
          const int count = class_count[i];
          class_count[i] = sum;
          sum += count;
        }
        args.workspace.counters->num_items = sum;
        args.workspace.counters->next_item = 0;
        args.workspace.counters->epoch = 0;
        args.workspace.counters->left_blocks = 0;
        args.workspace.counters->late_claims = shared_tiles;
      }
      __syncthreads();
    }
  }
  if (thread == 0) {
    args.workspace.counters->folds = folds;
    args.workspace.counters->used_units = used_units;
  }
}

}  // namespace outrider::cuda
