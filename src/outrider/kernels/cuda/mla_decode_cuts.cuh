// How the plan of an MLA decode step cuts a row tile's keys into pieces, one per item: at ends of
// splits, as evenly as these allow.
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
  bool shared_tiles;  // two items may share a tile
  MlaSplits splits;
  MlaWorkspace workspace;
};

// What an item costs beside its keys, in keys: query load, first tiles, epilogue.
inline constexpr int kItemCost = 128;

/// Where piece `index` of `pieces` ends: a split's end near the even cut (relaxed: every second
/// tile's, and no two pieces' the same). `step` is keys / pieces.
__device__ __forceinline__ int PieceEnd(const MlaPlanArguments& args, int keys, int pieces,
                                        float step, int index) {
  if (index + 1 >= pieces) return keys;
  if (args.relaxed) return (index + 1) * ((keys + 127) / 128) / pieces * 128;
  const int even = __float2int_rz(__fmul_rn(step, static_cast<float>(index + 1)));
  return min(keys, NearestSplit(args.splits, even));
}

/// Partial results that a piece of a cut tile leaves: the first folds its splits, later ones leave
/// each (relaxed: one).
__device__ __forceinline__ int CountPartials(const MlaPlanArguments& args, int begin, int end) {
  if (end <= begin) return 0;
  if (begin == 0 || args.relaxed) return 1;
  return CountSplits(args.splits, end) - CountSplits(args.splits, begin);
}

/// The pieces of a tile, 32 at a time, one per lane of a warp.
struct LanePieces {
  int keys;
  int pieces;
  float step;
  int first = 0;
  int begin = 0;
  int end = 0;  // equal to `begin`: no piece

  __device__ LanePieces(const MlaPlanArguments& args, int tile_keys, int count)
      : keys(tile_keys), pieces(count) {
    step = __fdiv_rn(static_cast<float>(tile_keys), static_cast<float>(count));
    Find(args, 0);
  }
  __device__ bool Done() const { return first >= pieces; }
  __device__ void Advance(const MlaPlanArguments& args) {
    first += 32;
    Find(args, __shfl_sync(~0u, end, 31));
  }

 private:
  __device__ void Find(const MlaPlanArguments& args, int from) {
    const int lane = threadIdx.x % 32;
    end = PieceEnd(args, keys, pieces, step, first + lane);
    begin = __shfl_up_sync(~0u, end, 1);
    if (lane == 0) begin = from;
  }
};

/// How a tile is cut.
struct MlaCut {
  int pieces;
  int partials;  // results that they leave
};

/// A cut of which one piece has about `piece` keys: a few more pieces than the quotient where
/// rounding to splits would make one much longer, but at most `room`. All lanes of a warp.
__device__ __forceinline__ MlaCut FindCut(const MlaPlanArguments& args, int keys, int piece,
                                          int room) {
  const int most = min(room, args.relaxed ? (keys + 127) / 128 : CountSplits(args.splits, keys));
  const int wanted = min(most, (keys + piece - 1) / piece);
  const int limit = keys / wanted + keys / wanted / 8;
  constexpr int kTries = 5;
#pragma unroll 1
  for (int more = 0;; ++more) {
    const bool settled = wanted == most || more == kTries || wanted + more > most;
    const int pieces = settled ? wanted : wanted + more;
    int longest = 0;
    int partials = 0;
#pragma unroll 1
    for (LanePieces lanes(args, keys, pieces); !lanes.Done(); lanes.Advance(args)) {
      longest = max(longest, lanes.end - lanes.begin);
      partials += CountPartials(args, lanes.begin, lanes.end);
    }
    if (settled || __reduce_max_sync(~0u, longest) <= limit) {
      return {pieces, __reduce_add_sync(~0u, partials)};
    }
  }
}

}  // namespace outrider::cuda
