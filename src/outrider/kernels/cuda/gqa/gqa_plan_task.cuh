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
inline constexpr int kGqaItemCost = 96;     // what an item costs beside its keys, in keys
inline constexpr int kMostGqaPieces = 512;  // times 2^22 keys fit in 32 bits

struct GqaPlanShared {
  unsigned long long cost;
  int tiles;
  int longest;
  int cut_tiles;
  int used_units;
  int class_count[kGqaClasses];
};

/// Where piece i of a tile that sees `keys` keys from 0 on ends; 0 for i < 0.
__device__ __forceinline__ int GqaPieceEnd(int keys, int i, int pieces) {
  if (i < 0) return 0;
  if (i + 1 >= pieces) return keys;
  const auto cut = static_cast<int>(static_cast<unsigned>(keys) * static_cast<unsigned>(i + 1) /
                                    static_cast<unsigned>(pieces));
  const int before = GqaSplitBefore(cut);
  const int after = NextGqaSplit(before);
  // The first piece has a split at least.
  return min(keys, max(kLeastGqaSplit, cut - before <= after - cut ? before : after));
}

/// A tile of a request.
struct GqaPlanTile {
  int request;
  int first_row;
  int tokens;
  int position;
  int key_begin;
  int key_end;

  __device__ __forceinline__ GqaPlanTile(const GqaPlanArguments& args, int request_,
                                         int query_begin, int query_len, int seq_len, int token)
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
  __device__ __forceinline__ GqaItem Item() const {
    GqaItem item = {};
    item.request = request;
    item.first_row = first_row;
    item.tokens = tokens;
    item.position = position;
    item.key_begin = key_begin;
    item.key_end = key_end;
    item.cut = -1;
    return item;
  }
};

// A request of more tiles is shared by a warp.
inline constexpr int kFewGqaTiles = 4;

/// Calls visit(tile, index) for all tiles of the step: a lane per request, or per tile where a
/// request has many. `visit` is called by some lanes of a warp.
template <typename Visit>
__device__ __forceinline__ void ForGqaTiles(const GqaPlanArguments& args, Visit visit) {
  const int lane = threadIdx.x % 32;
  for (int first = threadIdx.x / 32 * 32; first < args.num_requests; first += kGqaPlanThreads) {
    const int own = first + lane;
    int begin = 0;
    int length = 0;
    int seq_len = 0;
    if (own < args.num_requests) {
      begin = args.query_start_loc[own];
      length = args.query_start_loc[own + 1] - begin;
      seq_len = args.seq_lens[own];
    }
    const auto visit_tile = [&](int request, int at, int rows, int keys, int token) {
      visit(GqaPlanTile(args, request, at, rows, keys, token),
            at / args.tile_tokens + request + token / args.tile_tokens);
    };
    const bool many = length > kFewGqaTiles * args.tile_tokens;
    if (!many) {
      for (int token = 0; token < length; token += args.tile_tokens) {
        visit_tile(own, begin, length, seq_len, token);
      }
    }
    __syncwarp();
    for (uint32_t left = __ballot_sync(~0u, many); left != 0; left &= left - 1) {
      const int source = __ffs(static_cast<int>(left)) - 1;
      const int at = __shfl_sync(~0u, begin, source);
      const int rows = __shfl_sync(~0u, length, source);
      const int keys = __shfl_sync(~0u, seq_len, source);
      for (int token = lane * args.tile_tokens; token < rows; token += 32 * args.tile_tokens) {
        visit_tile(first + source, at, rows, keys, token);
      }
      __syncwarp();
    }
  }
}

__device__ __forceinline__ int GqaCostClass(int keys, int longest) {
  return kGqaClasses - 1 -
         min(kGqaClasses - 1,
             static_cast<int>(static_cast<long long>(keys) * kGqaClasses / (longest + 1)));
}

/// Keys that an item should have at most, so that all blocks are busy to the end.
__device__ __forceinline__ int GqaPieceKeys(const GqaPlanArguments& args,
                                            const GqaPlanShared& shared) {
  const unsigned long long all = shared.cost * static_cast<unsigned>(args.kv_heads);
  const auto share =
      static_cast<int>(min(1ull << 29, all * 9 / 8 / static_cast<unsigned>(args.blocks) + 1));
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
  const int lane = thread % 32;
  const GqaWorkspace& workspace = args.workspace;
  if (thread < kGqaClasses) shared.class_count[thread] = 0;
  if (thread == 0) {
    shared.cost = 0;
    shared.tiles = 0;
    shared.longest = 1;
    shared.cut_tiles = 0;
    shared.used_units = 0;
  }
  __syncthreads();
  unsigned long long cost = 0;
  int tiles = 0;
  int most = 0;
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int) {
    cost += static_cast<unsigned>(tile.keys() + kGqaItemCost);
    ++tiles;
    most = max(most, tile.keys());
  });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) cost += __shfl_xor_sync(~0u, cost, step);
  tiles = __reduce_add_sync(~0u, tiles);
  most = __reduce_max_sync(~0u, most);
  if (lane == 0 && tiles > 0) {
    atomicAdd(&shared.cost, cost);
    atomicAdd(&shared.tiles, tiles);
    atomicMax(&shared.longest, most);
  }
  __syncthreads();
  const int piece_keys = GqaPieceKeys(args, shared);
  const int longest = shared.longest;

  // Tiles that stay whole are counted by class; others are listed, with room for their results.
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int index) {
    const int pieces = GqaPieces(args, tile, piece_keys);
    if (pieces > 1) {
      const int first_end = GqaPieceEnd(tile.key_end, 0, pieces);
      const int partials = 1 + CountGqaSplits(tile.key_end) - CountGqaSplits(first_end);
      const int units = partials * tile.Units(args) * args.kv_heads;
      const int unit = atomicAdd(&shared.used_units, units);
      const int cut = unit + units <= kMaxGqaUnits ? atomicAdd(&shared.cut_tiles, 1) : -1;
      if (cut >= 0) {
        GqaItem item = tile.Item();
        item.cut = cut;
        item.pieces = pieces;
        item.first_unit = unit;
        item.partials = partials;
        item.partial = CountGqaSplits(first_end);
        workspace.cut_tiles[cut] = item;
        workspace.tile_cuts[index] = cut;
        return;
      }
    }
    workspace.tile_cuts[index] = -1;
    atomicAdd(&shared.class_count[GqaCostClass(tile.keys(), longest)], 1);
  });
  __syncthreads();
  // A warp per tile that is cut, a lane per piece. Pieces may round to nothing.
  const auto for_pieces = [&](auto visit) {
    for (int cut = thread / 32; cut < shared.cut_tiles; cut += kGqaPlanThreads / 32) {
      const GqaItem item = workspace.cut_tiles[cut];
      for (int i = lane; i < item.pieces; i += 32) {
        const int begin = GqaPieceEnd(item.key_end, i - 1, item.pieces);
        const int end = GqaPieceEnd(item.key_end, i, item.pieces);
        if (end > begin) visit(item, begin, end);
      }
    }
  };
  for_pieces([&](const GqaItem& item, int begin, int end) {
    atomicAdd(&shared.class_count[GqaCostClass(end - begin, longest)], 1);
    atomicAdd(&workspace.cut_tiles[item.cut].head, 1);  // pieces that there are
  });
  __syncthreads();
  if (thread < 32) {
    static_assert(kGqaClasses == 32);
    const int size = shared.class_count[lane];
    int end = size;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += before;
    }
    shared.class_count[lane] = end - size;
    if (lane == 31) {
      *workspace.counters = {.num_items = end * args.kv_heads, .next_item = 0, .left_blocks = 0};
    }
  }
  __syncthreads();

  // Write the items.
  ForGqaTiles(args, [&](const GqaPlanTile& tile, int index) {
    if (workspace.tile_cuts[index] >= 0) return;
    workspace.items[atomicAdd(&shared.class_count[GqaCostClass(tile.keys(), longest)], 1)] =
        tile.Item();
  });
  for_pieces([&](GqaItem item, int begin, int end) {
    const int folded = item.partial;  // splits of the first piece, which leaves one result
    item.pieces = workspace.cut_tiles[item.cut].head;
    item.partial = begin == 0 ? 0 : 1 + CountGqaSplits(begin) - folded;
    item.key_begin = begin;
    item.key_end = end;
    workspace.items[atomicAdd(&shared.class_count[GqaCostClass(end - begin, longest)], 1)] = item;
  });
}

}  // namespace outrider::cuda
