// The parts of an MLA decode step's plan (mla_decode_plan.cuh): a row tile, and what is counted and
// written of one that stays whole, is shared by two items or is cut in pieces.
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

  /// Without rows until SetRow.
  __device__ __forceinline__ PlanTile(const MlaPlanArguments& args, int request_)
      : request(request_),
        query_begin(args.query_start_loc[request_]),
        query_len(args.query_start_loc[request_ + 1] - query_begin),
        seq_len(args.seq_lens[request_]) {}

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
    item.MakeOutput();
    item.first_row = query_begin * args.heads + row;
    item.SetRows(row, rows);
    item.seq_len = seq_len;
    item.context = seq_len - query_len;
    return item;
  }
};

// The parts of PlanMlaDecode's two passes. The first pass counts items per class in `class_count`.
// In the second pass it holds the place of the next item of each class.

/// Stores how a tile is cut. It leaves the last word alone, which other warps may be reading.
__device__ __forceinline__ void StoreCut(const MlaPlanArguments& args, const PlanTile& tile,
                                         MlaCut cut, int unit) {
  MlaTilePlan* plan = &args.workspace.tile_plans[tile.index];
  plan->pieces_bits = cut.pieces;
  plan->partials = cut.partials;
  plan->first_unit = unit;
}
/// Stores that two items share a tile: the second begins at `position`.
__device__ __forceinline__ void StoreShared(const MlaPlanArguments& args, const PlanTile& tile,
                                            int position, int unit) {
  StoreCut(args, tile, {-position, 1}, unit);
}

/// First pass, a tile that is one item: one lane.
__device__ __forceinline__ void CountWhole(const MlaPlanArguments& args, const PlanTile& tile,
                                           int* class_count, int longest) {
  StoreCut(args, tile, {1, 0}, -1);
  if (tile.keys > 0) atomicAdd(&class_count[CostClass(tile.keys, longest)], 1);
}

/// First pass, a tile that two items share: one lane.
__device__ __forceinline__ void CountShared(const MlaPlanArguments& args, const PlanTile& tile,
                                            int position, int* used_units, int* class_count,
                                            int longest) {
  const int unit = atomicAdd(used_units, tile.Units());
  if (unit + tile.Units() > args.workspace.num_units) {
    CountWhole(args, tile, class_count, longest);  // no room
    return;
  }
  StoreShared(args, tile, position, unit);
  atomicAdd(&class_count[0], 1);
  atomicAdd(&class_count[kPlanClasses + CostClass(tile.keys - position, longest)], 1);
}

/// Second pass, a tile that two items share: one lane.
__device__ __forceinline__ void WriteShared(const MlaPlanArguments& args, const PlanTile& tile,
                                            MlaTilePlan plan, int* class_count, int longest) {
  args.workspace.tile_plans[tile.index].ClearReports();
  MlaItem item = tile.Item(args);
  item.key_end = plan.position();
  item.BeFirstPart(plan.first_unit);
  args.workspace.items[atomicAdd(&class_count[0], 1)] = item;
  item.key_begin = item.key_end;
  item.key_end = tile.keys;
  item.BeSecondPart(plan.first_unit);
  const int cost_class = kPlanClasses + CostClass(tile.keys - plan.position(), longest);
  args.workspace.items[atomicAdd(&class_count[cost_class], 1)] = item;
}

/// Where the tiles of a request that `takes_part` are cut, or 0. Requests with the same number of
/// tiles are laid end to end on `lines[tiles]`, in any order, and cut at each multiple of `share`;
/// tiles of a request alike, so that they run at the same time and read keys once. All lanes.
__device__ __forceinline__ int SharePosition(const MlaPlanArguments& args, const PlanTile& tile,
                                             bool takes_part, unsigned* lines, unsigned share) {
  const uint32_t of_all = __ballot_sync(~0u, takes_part);
  if (of_all == 0) return 0;
  const int lane = threadIdx.x % 32;
  const int first_lane = lane / args.lanes * args.lanes;
  const uint32_t tiles = of_all & ((~0u >> (32 - args.lanes)) << first_lane);
  const int last_lane = tiles == 0 ? lane : 31 - __clz(static_cast<int>(tiles));
  const unsigned cost = __shfl_sync(~0u, tile.keys, last_lane) + kItemCost;
  unsigned begin = 0;
  if (lane == first_lane && tiles != 0) begin = atomicAdd(&lines[__popc(tiles)], cost);
  begin = __shfl_sync(~0u, begin, first_lane);
  if (tiles == 0) return 0;
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
                                          MlaTilePlan plan, int items, MlaFoldCount* folds) {
  args.workspace.tile_plans[tile.index].ClearReports();
  MlaFoldTile fold = {};
  fold.first_row = tile.query_begin * args.heads + tile.row;
  fold.rows = tile.rows;
  fold.first_unit = plan.first_unit;
  fold.count = plan.partials;
  fold.items = items;
  fold.plan = tile.index;
  args.workspace.fold_tiles[atomicAdd(&folds->tiles, 1)] = fold;
  atomicMax(&folds->rows, tile.rows);
}

/// Second pass, a tile that is one item: one lane. Rows without keys are written by the fold.
__device__ __forceinline__ void WriteWhole(const MlaPlanArguments& args, const PlanTile& tile,
                                           int* class_count, int longest, MlaFoldCount* folds) {
  const MlaItem item = tile.Item(args);
  args.workspace.tile_plans[tile.index].ClearReports();
  if (tile.keys > 0) {
    args.workspace.items[atomicAdd(&class_count[CostClass(tile.keys, longest)], 1)] = item;
    return;
  }
  WriteFold(args, tile, MlaTilePlan{0, 0, -1, 0}, 0, folds);
}

/// Second pass, a tile in pieces: every `stride`-th from `first` on. Returns how many items that
/// is.
__device__ __forceinline__ int WritePieces(const MlaPlanArguments& args, const PlanTile& tile,
                                           MlaTilePlan plan, int first, int stride,
                                           int* class_count, int longest) {
  const PieceEnds ends = tile.Ends(args, plan.pieces());
  // Results before the split at `begin` > 0: one of the first piece, which folds its own.
  const int folded = CountSplits(args.splits, ends(args, 0)) - 1;
  MlaItem item = tile.Item(args);
  int items = 0;
#pragma unroll 1
  for (int i = first; i < plan.pieces(); i += stride) {
    const int begin = i == 0 ? 0 : ends(args, i - 1);
    const int end = ends(args, i);
    if (end == begin) continue;
    const int before = begin == 0 ? 0 : args.relaxed ? i : CountSplits(args.splits, begin) - folded;
    item.key_begin = begin;
    item.key_end = end;
    item.LeavePartials(plan.first_unit + before * tile.Units());
    args.workspace.items[atomicAdd(&class_count[CostClass(end - begin, longest)], 1)] = item;
    ++items;
  }
  return items;
}

}  // namespace outrider::cuda
