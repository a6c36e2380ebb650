// The plan of a step of grouped-query attention: the list of work items, made by one block.
//
// A tile is as many tokens of a request as a block takes. Tiles over a window stay whole. Others
// are cut at ends of splits where whole ones would leave blocks idle. Items are listed longest
// first, in 32 classes; their order within a class depends on timing and changes the schedule only.
#pragma once

#include "outrider/kernels/cuda/gqa/gqa_layout.cuh"

namespace outrider::cuda {

inline constexpr int kGqaPlanThreads = 1024;
inline constexpr int kGqaClasses = 32;
inline constexpr int kGqaItemCost = 96;  // what an item costs beside its keys, in keys
inline constexpr int kMostGqaPieces = 512;

struct GqaPlanShared {
  unsigned long long cost;
  int tiles;
  int longest;
  int class_count[kGqaClasses];
};

/// A tile of a request.
struct GqaPlanTile {
  int request;
  int first_row;
  int tokens;
  int position;
  int key_begin;
  int key_end;

  __device__ __forceinline__ GqaPlanTile(const GqaPlanArguments& args, int request_, int query_begin,
                                         int query_len, int seq_len, int token)
      : request(request_),
        first_row(query_begin + token),
        tokens(min(args.tile_tokens, query_len - token)),
        position(seq_len - query_len + token),
        key_begin(args.window > 0 ? max(0, position - args.window + 1) / kGqaTileKeys * kGqaTileKeys
                                  : 0),
        key_end(position + tokens) {}

  __device__ __forceinline__ int keys() const { return key_end - key_begin; }
  /// Units of one partial result.
  __device__ __forceinline__ int Units(const GqaPlanArguments& args) const {
    return (tokens * args.row_heads + kGqaUnitRows - 1) / kGqaUnitRows;
  }
  /// Where piece i of `pieces` ends.
  __device__ __forceinline__ int PieceEnd(int i, int pieces) const {
    if (i + 1 >= pieces) return key_end;
    const auto cut = static_cast<int>(static_cast<long long>(key_end) * (i + 1) / pieces);
    const int before = GqaSplitBefore(cut);
    const int after = NextGqaSplit(before);
    // The first piece has a split at least.
    return min(key_end, max(kLeastGqaSplit, cut - before <= after - cut ? before : after));
  }
};

/// Calls visit(tile, index) for all tiles of the step: a warp per request, a lane per tile.
template <typename Visit>
__device__ __forceinline__ void ForGqaTiles(const GqaPlanArguments& args, Visit visit) {
  const int lane = threadIdx.x % 32;
  for (int request = threadIdx.x / 32; request < args.num_requests;
       request += kGqaPlanThreads / 32) {
    const int begin = args.query_start_loc[request];
    const int length = args.query_start_loc[request + 1] - begin;
    const int seq_len = args.seq_lens[request];
    for (int token = lane * args.tile_tokens; token < length; token += 32 * args.tile_tokens) {
      visit(GqaPlanTile(args, request, begin, length, seq_len, token),
            begin / args.tile_tokens + request + token / args.tile_tokens);
    }
  }
}

__device__ __forceinline__ int GqaCostClass(int keys, int longest) {
  return kGqaClasses - 1 -
         min(kGqaClasses - 1, static_cast<int>(static_cast<long long>(keys) * kGqaClasses /
                                               (longest + 1)));
}

/// Keys that an item should have at most, so that all blocks are busy to the end.
__device__ __forceinline__ int GqaPieceKeys(const GqaPlanArguments& args,
                                            const GqaPlanShared& shared) {
  const unsigned long long all = shared.cost * static_cast<unsigned>(args.kv_heads);
  const auto share = static_cast<int>(
      min(1ull << 29, all * 9 / 8 / static_cast<unsigned>(args.blocks) + 1));
  const auto mean = static_cast<int>(min(1ull << 29, shared.cost / max(1, shared.tiles)));
  const int items = shared.tiles * args.kv_heads;
  int best = 1;
  float least = 1e30F;
  for (int pieces = 1; pieces <= 4; ++pieces) {
    const int rounds = (items * pieces + args.blocks - 1) / args.blocks;
    // A cut has to win more than what its partial results cost.
    const float time = static_cast<float>(rounds) / static_cast<float>(pieces) *
                       (1.0F + 0.06F * static_cast<float>(pieces - 1));
    if (items > 8 * args.blocks && pieces > 1) break;
    if (time < least) {
      least = time;
      best = pieces;
    }
  }
  return max(kLeastGqaSplit, best == 1 ? share : min(share, mean / best + mean / 16));
}

/// How many pieces a tile is cut into, not yet where there is no room for their results.
__device__ __forceinline__ int GqaPieces(const GqaPlanArguments& args, const GqaPlanTile& tile,
                                         int piece_keys) {
  if (args.window > 0 || tile.keys() <= piece_keys) return 1;
  return min(kMostGqaPieces,
             min(CountGqaSplits(tile.key_end), (tile.keys() + piece_keys - 1) / piece_keys));
}

/// All threads of the block.
__device__ __forceinline__ void PlanGqa(const GqaPlanArguments& args, GqaPlanShared& shared) {
  const int thread = threadIdx.x;
  GqaWorkspace workspace = args.workspace;
  if (thread < kGqaClasses) shared.class_count[thread] = 0;
  if (thread == 0) {
    shared.cost = 0;
    shared.tiles = 0;
    shared.longest = 1;
    *workspace.counters = {};
  }
  __syncthreads();
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int) {
    atomicAdd(&shared.cost, static_cast<unsigned long long>(tile.keys() + kGqaItemCost));
    atomicAdd(&shared.tiles, 1);
    atomicMax(&shared.longest, tile.keys());
  });
  __syncthreads();
  const int piece_keys = GqaPieceKeys(args, shared);
  const int longest = shared.longest;

  // First pass: cut, count by class.
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int index) {
    int pieces = GqaPieces(args, tile, piece_keys);
    int cut = -1;
    int unit = -1;
    if (pieces > 1) {
      // The first piece leaves one result, the others one per split.
      const int partials = 1 + CountGqaSplits(tile.key_end) - CountGqaSplits(tile.PieceEnd(0, pieces));
      const int units = partials * tile.Units(args) * args.kv_heads;
      unit = atomicAdd(&workspace.counters->used_units, units);
      if (unit + units > kMaxGqaUnits) {
        pieces = 1;
        unit = -1;
      } else {
        cut = atomicAdd(&workspace.counters->cut_tiles, 1);
      }
    }
    workspace.tile_plans[index] = make_int4(pieces, cut, unit, 0);
    int begin = tile.key_begin;
    for (int i = 0; i < pieces; ++i) {
      const int end = tile.PieceEnd(i, pieces);
      if (end > begin) atomicAdd(&shared.class_count[GqaCostClass(end - begin, longest)], 1);
      begin = end;
    }
  });
  __syncthreads();
  if (thread == 0) {
    int count = 0;
    for (int& place : shared.class_count) {
      const int size = place;
      place = count;
      count += size;
    }
    workspace.counters->num_items = count * args.kv_heads;
  }
  __syncthreads();

  // Second pass: write the items.
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int index) {
    const int4 plan = workspace.tile_plans[index];
    GqaItem item = {};
    item.request = tile.request;
    item.first_row = tile.first_row;
    item.tokens = tile.tokens;
    item.position = tile.position;
    item.cut = plan.y;
    item.first_unit = plan.z;
    const int first_end = tile.PieceEnd(0, plan.x);
    const int folded = CountGqaSplits(first_end);
    item.partials = plan.y < 0 ? 0 : 1 + CountGqaSplits(tile.key_end) - folded;
    // Short pieces may round to the same place, so there may be fewer.
    int begin = tile.key_begin;
    for (int i = 0; i < plan.x; ++i) {
      const int end = tile.PieceEnd(i, plan.x);
      if (end > begin) ++item.pieces;
      begin = end;
    }
    begin = tile.key_begin;
    for (int i = 0; i < plan.x; ++i) {
      const int end = tile.PieceEnd(i, plan.x);
      if (end <= begin) continue;
      item.key_begin = begin;
      item.key_end = end;
      item.partial = begin == 0 ? 0 : 1 + CountGqaSplits(begin) - folded;
      const int at = atomicAdd(&shared.class_count[GqaCostClass(end - begin, longest)], 1);
      workspace.items[at] = item;
      begin = end;
    }
  });
}

}  // namespace outrider::cuda
