// How the plan of an MLA decode step cuts a row tile's keys into pieces, one per item: at ends of
// splits, so that all take as long as these allow.
#pragma once

#include "outrider/kernels/cuda/mla_decode/mla_decode_layout.cuh"

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
  int lanes;          // of a warp for a request; fewer than 32: the tiles that each request has
  MlaSplits splits;
  MlaWorkspace workspace;
};

// What an item costs beside its keys, in keys: query load, first tiles, epilogue.
inline constexpr int kItemCost = 128;

// A tile in more pieces is cut evenly: they are short, and the longest counts.
inline constexpr int kMostUnevenPieces = 4;

/// Where the pieces of a tile end: at the splits' ends near the cuts (relaxed: at every second
/// tile's, and no two pieces at the same).
///
/// The first piece folds its splits as it goes. A later one leaves a result per split, which is
/// written and read again and takes as long as two keys per row. So the first piece is longer, if
/// the tile has its keys to itself: tiles of the same keys read them together where all are cut
/// alike. bf16 only.
struct PieceEnds {
  int keys;
  int pieces;
  float first_keys;  // of the first piece before rounding to splits
  float other_keys;  // of each other

  /// `own_rows`: of the tile, 0 where others have the same keys.
  __device__ PieceEnds(const MlaPlanArguments& args, int tile_keys, int own_rows, int count)
      : keys(tile_keys), pieces(count) {
    // Rounding is spelled out: both passes of the plan must find the same ends.
    const auto all = static_cast<float>(keys);
    first_keys = other_keys = __fdiv_rn(all, static_cast<float>(pieces));
    const bool uneven = args.tile_rows == kMlaTileRows && !args.relaxed && own_rows > 0 &&
                        pieces > 1 && pieces <= kMostUnevenPieces &&
                        CountSplits(args.splits, keys) >= 2 * pieces;
    if (!uneven) return;
    const auto split = static_cast<float>(1 << SplitSize(args.splits, keys / 2).shift);
    const auto result = static_cast<float>(2 * own_rows);
    const float shares = __fadd_rn(__fmul_rn(split, static_cast<float>(pieces)), result);
    first_keys = __fdiv_rn(__fmul_rn(all, __fadd_rn(split, result)), shares);
    other_keys = __fdiv_rn(__fsub_rn(all, first_keys), static_cast<float>(pieces - 1));
  }

  __device__ __forceinline__ int operator()(const MlaPlanArguments& args, int index) const {
    if (index + 1 >= pieces) return keys;
    if (args.relaxed) return (index + 1) * ((keys + 127) / 128) / pieces * 128;
    const float end = __fadd_rn(first_keys, __fmul_rn(other_keys, static_cast<float>(index)));
    return min(keys, NearestSplit(args.splits, __float2int_rz(end)));
  }
};

/// Partial results that a piece of a cut tile leaves: the first folds its splits, later ones leave
/// each (relaxed: one).
__device__ __forceinline__ int CountPartials(const MlaPlanArguments& args, int begin, int end) {
  if (end <= begin) return 0;
  if (begin == 0 || args.relaxed) return 1;
  return CountSplits(args.splits, end) - CountSplits(args.splits, begin);
}

/// The pieces of a tile, 32 at a time, one per lane of a warp.
struct LanePieces {
  PieceEnds ends;
  int first = 0;
  int begin = 0;
  int end = 0;  // equal to `begin`: no piece

  __device__ LanePieces(const MlaPlanArguments& args, const PieceEnds& piece_ends)
      : ends(piece_ends) {
    Find(args, 0);
  }
  __device__ bool Done() const { return first >= ends.pieces; }
  __device__ void Advance(const MlaPlanArguments& args) {
    first += 32;
    Find(args, __shfl_sync(~0u, end, 31));
  }

 private:
  __device__ void Find(const MlaPlanArguments& args, int from) {
    const int lane = threadIdx.x % 32;
    end = ends(args, first + lane);
    begin = __shfl_up_sync(~0u, end, 1);
    if (lane == 0) begin = from;
  }
};

/// How a tile is cut.
struct MlaCut {
  int pieces;
  int partials;  // results that they leave
};

/// A cut of which one piece has about `piece` keys: a few more pieces than the quotient where one
/// would be much longer, by rounding to splits or as the first, but at most `room`. All lanes of a
/// warp.
__device__ __forceinline__ MlaCut FindCut(const MlaPlanArguments& args, int keys, int own_rows,
                                          int piece, int room) {
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
    for (LanePieces lanes(args, PieceEnds(args, keys, own_rows, pieces)); !lanes.Done();
         lanes.Advance(args)) {
      longest = max(longest, lanes.end - lanes.begin);
      partials += CountPartials(args, lanes.begin, lanes.end);
    }
    if (settled || __reduce_max_sync(~0u, longest) <= limit) {
      return {pieces, __reduce_add_sync(~0u, partials)};
    }
  }
}

}  // namespace outrider::cuda
