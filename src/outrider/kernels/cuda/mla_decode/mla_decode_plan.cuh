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

#include "outrider/kernels/cuda/mla_decode/mla_decode_plan_tile.cuh"

namespace outrider::cuda {

/// What the phases of a plan count, in shared memory.
struct PlanCounts {
  unsigned long long cost;
  int tiles;
  int busy_requests;  // that have tiles
  int longest;        // of the requests' keys
  int shortest;       // of the tiles' keys
  int whole;          // tiles that stay whole, which this numbers
  int class_count[kListClasses];
  unsigned lines[33];
  int used_units;
  MlaFoldCount folds;

  /// All threads.
  __device__ __forceinline__ void Clear() {
    const int thread = threadIdx.x;
    if (thread < kListClasses) class_count[thread] = 0;
    if (thread < 33) lines[thread] = 0;
    if (thread == 0) {
      cost = 0;
      tiles = 0;
      busy_requests = 0;
      longest = 1;
      shortest = 1 << 30;
      whole = 0;
      used_units = 0;
      folds = {0, 0};
    }
  }
};

/// Calls visit(tile) for the tiles of all requests, a lane for each tile: a warp has one request at
/// a time, or several of args.lanes tiles each.
template <typename Visit>
__device__ __forceinline__ void ForEachTile(const MlaPlanArguments& args, Visit visit) {
  const int lane = threadIdx.x % 32;
  const int requests = 32 / args.lanes;
  const int own = lane / args.lanes;
  if (own >= requests) return;
  for (int request = static_cast<int>(threadIdx.x) / 32 * requests + own;
       request < args.num_requests; request += kPlanThreads / 32 * requests) {
    PlanTile tile(args, request);
    const int rows = tile.query_len * args.heads;
    for (int row = lane % args.lanes * args.tile_rows; row < rows;
         row += args.lanes * args.tile_rows) {
      tile.SetRow(args, row);
      visit(tile);
    }
  }
}

/// Counts costs, tiles and busy requests.
__device__ __forceinline__ void MeasureTiles(const MlaPlanArguments& args, PlanCounts& counts) {
  unsigned long long cost = 0;
  int tiles = 0;
  int busy_requests = 0;
  int longest = 0;
  int shortest = 1 << 30;
  ForEachTile(args, [&](const PlanTile& tile) {
    cost += tile.keys + kItemCost;
    ++tiles;
    busy_requests += tile.row == 0 ? 1 : 0;
    longest = max(longest, tile.seq_len);
    shortest = min(shortest, tile.keys);
  });
  __syncwarp();
#pragma unroll
  for (int step = 16; step > 0; step /= 2) cost += __shfl_xor_sync(~0u, cost, step);
  tiles = __reduce_add_sync(~0u, tiles);
  busy_requests = __reduce_add_sync(~0u, busy_requests);
  longest = __reduce_max_sync(~0u, longest);
  shortest = __reduce_min_sync(~0u, shortest);
  if (threadIdx.x % 32 != 0 || tiles == 0) return;
  atomicAdd(&counts.cost, cost);
  atomicAdd(&counts.tiles, tiles);
  atomicAdd(&counts.busy_requests, busy_requests);
  atomicMax(&counts.longest, longest);
  atomicMin(&counts.shortest, shortest);
}

/// What a block gets at most.
struct PlanShare {
  int cost;
  bool alike;       // all tiles are cut into pieces_each pieces
  int pieces_each;  // if alike
};

__device__ __forceinline__ PlanShare FindShare(const MlaPlanArguments& args,
                                               const PlanCounts& counts) {
  // A tenth more than the exact share, so that rounding to whole splits does not start a new round.
  const int fair = static_cast<int>(
      min(1ull << 30, counts.cost * 11 / 10 / static_cast<unsigned>(args.blocks) + 1));
  // Tiles alike are cut in as many pieces as one round has room for: of smaller ones a second round
  // would be begun, which takes longer.
  const bool similar = counts.longest <= counts.shortest + counts.shortest / 4;
  const bool alike = counts.tiles > 0 && counts.tiles <= args.blocks && similar;
  const int room_each = alike ? args.blocks / counts.tiles : 1;
  // Where 3 blocks of 7 and more have a nearly full tile with keys of its own, halves would not be
  // faster: the results of a second half are nearly as many bytes as its keys.
  const int all_rows = args.query_start_loc[args.num_requests] * args.heads;
  const bool own_keys = args.tile_rows == kMlaTileRows && counts.tiles == counts.busy_requests;
  const bool whole_tiles = own_keys && !args.relaxed && room_each == 2 &&
                           7 * counts.tiles >= 3 * args.blocks && all_rows >= 48 * counts.tiles;
  const int pieces_each = whole_tiles ? 1 : room_each;
  const int of_piece = (counts.longest + kItemCost + pieces_each - 1) / pieces_each;
  return {alike ? max(fair, of_piece) : fair, alike, pieces_each};
}

/// Numbers the tiles that stay whole.
__device__ __forceinline__ void NumberWholeTiles(const MlaPlanArguments& args, int share,
                                                 PlanCounts& counts) {
  ForEachTile(args, [&](const PlanTile& tile) {
    const bool large = tile.keys + kItemCost > share / 8;
    const bool fits = tile.keys + kItemCost <= share;
    args.workspace.tile_plans[tile.index].SetWholeNumber(large && fits ? atomicAdd(&counts.whole, 1)
                                                                       : -1);
  });
}

/// How the last round is filled, where whole tiles leave many of its blocks idle.
struct PlanRound {
  bool shared_tiles;     // tiles that two items share
  int whole_limit;       // whole tiles from this number on are cut finely
  unsigned exact_share;  // of shared tiles
};

__device__ __forceinline__ PlanRound FindRound(const MlaPlanArguments& args, int share, int whole) {
  const int rounds = (whole + args.blocks - 1) / args.blocks;
  const bool uneven = whole > args.blocks && rounds * args.blocks > whole + whole / 8;
  const bool shared_tiles = uneven && args.shared_tiles;
  const bool fine_cuts = uneven && !shared_tiles;
  return {shared_tiles, fine_cuts ? (rounds - 1) * args.blocks : whole,
          max(1u, static_cast<unsigned>(share / 11 * 10))};
}

/// One pass over all tiles. First pass: cut them, count items per class. Second pass: write the
/// items. A lane per tile that stays whole, a warp for each that does not; few requests have
/// several warps each, and of many with few tiles a warp has several. Several cut tiles of a
/// request are written by a lane each, piece by piece: items of the same keys then lie together in
/// the list, run at the same time and read them from memory once.
__device__ __forceinline__ void RunPass(const MlaPlanArguments& args, int pass,
                                        const PlanShare& share, const PlanRound& round,
                                        PlanCounts& counts) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int sharing = max(1, kPlanThreads / 32 / max(1, args.num_requests));
  const int requests = 32 / args.lanes;  // of a warp at a time
  const int own = lane / args.lanes;
#pragma unroll 1
  for (int first = warp / sharing * requests; first < args.num_requests;
       first += kPlanThreads / 32 / sharing * requests) {
    const bool has_request = own < requests && first + own < args.num_requests;
    PlanTile tile(args, has_request ? first + own : first);
    const int rows = has_request ? tile.query_len * args.heads : 0;
    int turn = 0;  // over the warps that share the request
#pragma unroll 1
    for (int first_row = 0; __any_sync(~0u, first_row < rows);
         first_row += args.lanes * args.tile_rows) {
      tile.SetRow(args, first_row + lane % args.lanes * args.tile_rows);
      const bool exists = tile.row < rows;
      const MlaTilePlan plan =
          exists ? args.workspace.tile_plans[tile.index] : MlaTilePlan{0, 0, -1, 0};
      const bool fine = plan.whole_number() >= round.whole_limit;
      const int wanted = (tile.keys + kItemCost + share.cost - 1) / share.cost;
      const bool uncut = pass == 0 ? tile.keys == 0 || (wanted == 1 && !fine) : plan.is_uncut();
      if (warp % sharing == 0) {
        int position = 0;
        if (pass == 0 && round.shared_tiles) {
          position = SharePosition(args, tile, exists && plan.is_numbered(), counts.lines,
                                   round.exact_share);
        }
        if (exists && uncut) {
          if (pass == 0 && position > 0) {
            CountShared(args, tile, position, &counts.used_units, counts.class_count,
                        counts.longest);
          } else if (pass == 0) {
            CountWhole(args, tile, counts.class_count, counts.longest);
          } else if (plan.is_shared()) {
            WriteShared(args, tile, plan, counts.class_count, counts.longest);
          } else {
            WriteWhole(args, tile, counts.class_count, counts.longest, &counts.folds);
          }
        }
      }
      uint32_t cut = __ballot_sync(~0u, exists && !uncut);
      if (pass == 1 && __popc(cut) > 1) {
        if (exists && !uncut && warp % sharing == 0) {
          const int items = WritePieces(args, tile, plan, 0, 1, counts.class_count, counts.longest);
          WriteFold(args, tile, plan, items, &counts.folds);
        }
        continue;
      }
      for (; cut != 0; cut &= cut - 1) {
        if (turn++ % sharing != warp % sharing) continue;
        const int from = __ffs(static_cast<int>(cut)) - 1;
        PlanTile other = tile;
        if (requests > 1) other = PlanTile(args, __shfl_sync(~0u, tile.request, from));
        other.SetRow(args, __shfl_sync(~0u, tile.row, from));
        if (pass == 0) {
          const int pieces = __shfl_sync(~0u, wanted, from);
          const int piece = __shfl_sync(~0u, static_cast<int>(fine), from) != 0
                                ? share.cost / 8 + 1
                                : (other.keys + pieces - 1) / pieces;
          const int room = share.alike ? share.pieces_each : other.keys;
          const MlaCut found = FindCut(args, other.keys, other.OwnRows(args), piece, room);
          CutTile(args, other, found, &counts.used_units, counts.class_count, counts.longest);
        } else {
          const MlaTilePlan cut_plan = {__shfl_sync(~0u, plan.pieces(), from),
                                        __shfl_sync(~0u, plan.partials, from),
                                        __shfl_sync(~0u, plan.first_unit, from), 0};
          const int items =
              WritePieces(args, other, cut_plan, lane, 32, counts.class_count, counts.longest);
          const int all_items = __reduce_add_sync(~0u, items);
          if (lane == 0) WriteFold(args, other, cut_plan, all_items, &counts.folds);
        }
      }
    }
  }
}

/// Between the passes: from counts of the classes to the places of their first items. One thread.
__device__ __forceinline__ void PlaceClasses(const MlaPlanArguments& args, bool shared_tiles,
                                             PlanCounts& counts) {
  int sum = 0;
  for (int i = 0; i < kListClasses; ++i) {
    const int count = counts.class_count[i];
    counts.class_count[i] = sum;
    sum += count;
  }
  args.workspace.counters->num_items = sum;
  args.workspace.counters->next_item = 0;
  args.workspace.counters->epoch = 0;
  args.workspace.counters->left_blocks = 0;
  args.workspace.counters->late_claims = shared_tiles;
}

__global__ void __launch_bounds__(kPlanThreads, 1) PlanMlaDecode(MlaPlanArguments args) {
  __shared__ PlanCounts counts;
  counts.Clear();
  __syncthreads();
  MeasureTiles(args, counts);
  __syncthreads();
  const PlanShare share = FindShare(args, counts);
  NumberWholeTiles(args, share.cost, counts);
  __syncthreads();
  const PlanRound round = FindRound(args, share.cost, counts.whole);
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    RunPass(args, pass, share, round, counts);
    __syncthreads();
    if (pass == 0 && threadIdx.x == 0) PlaceClasses(args, round.shared_tiles, counts);
    if (pass == 0) __syncthreads();
  }
  if (threadIdx.x == 0) {
    args.workspace.counters->folds = counts.folds;
    args.workspace.counters->used_units = counts.used_units;
  }
}

}  // namespace outrider::cuda
