// The plan of a step's sparse rows, by one block: a thread per row, rows in stripes of the block.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/sparse/request_of_row.cuh"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"

namespace outrider::cuda {

inline constexpr int kSparsePlanThreads = 1024;
inline constexpr int kScoredEntries = 64;      // that a block scores at a time
inline constexpr int kLeastPiece = 4;          // tiles of 64 entries of a piece of scoring
inline constexpr int kMostPiece = 64;          // ... unless the step is small
inline constexpr int kWantedPieces = 132 * 4;  // of a step: a few for every multiprocessor

struct SparsePlanShared {
  int warp_sums[kSparsePlanThreads / 32];
  unsigned long long tiles;
};

/// The sum of `value` over the block's threads before this one; `*all`: over all of them.
__device__ __forceinline__ int SumBefore(int value, int (&warp_sums)[kSparsePlanThreads / 32],
                                         int* all) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const int other = warp_sums[lane];
  const int before = __reduce_add_sync(~0u, lane < warp ? other : 0);
  *all = __reduce_add_sync(~0u, other);
  __syncthreads();
  return before + sum - value;
}

/// Tiles of 64 entries that the rows of a tile are scored against: none while all are chosen.
__device__ __forceinline__ int ScoredTiles(const SparseRowsParams& params, const SparseRows& rows,
                                           int row, int tile_rows) {
  if (tile_rows == 0) return 0;
  const int visible = rows.visible[row + tile_rows - 1];  // the last row sees most
  return visible <= params.top_k ? 0 : (visible + kScoredEntries - 1) / kScoredEntries;
}

__device__ __forceinline__ void PlanRows(const SparseRowsParams& params, const SparseRows& rows,
                                         SparsePlanShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int true_rows = params.num_requests > 0 ? params.query_start_loc[params.num_requests] : 0;
  const int rows_per_tile = kIndexColumns / params.index_heads;
  if (thread == 0) shared.tiles = 0;
  for (int row = thread; row < params.num_rows; row += kSparsePlanThreads) {
    int request = 0;
    int visible = 0;
    int tile_rows = 0;
    if (row < true_rows) {
      request = RequestOfRow(params.query_start_loc, params.num_requests, row);
      const int begin = params.query_start_loc[request];
      const int end = params.query_start_loc[request + 1];
      const int position = params.seq_lens[request] - end + row;
      visible = max(0, (position + 1) / params.ratio);
      const int in_tile = (row - begin) % rows_per_tile;
      if (in_tile == 0 || row % params.score_rows == 0) {
        const int boundary = (row / params.score_rows + 1) * params.score_rows;
        tile_rows = min(min(rows_per_tile - in_tile, end - row), boundary - row);
      }
    }
    rows.request[row] = request;
    rows.visible[row] = visible;
    rows.counts[row] = min(visible, params.top_k);
    rows.starts[row] = row;
    rows.tile_rows[row] = tile_rows;
  }
  __syncthreads();
  unsigned long long tiles = 0;
  for (int row = thread; row < params.num_rows; row += kSparsePlanThreads) {
    tiles += ScoredTiles(params, rows, row, rows.tile_rows[row]);
  }
  atomicAdd(&shared.tiles, tiles);
  __syncthreads();
  const int wanted = static_cast<int>(
      min(shared.tiles / kWantedPieces + 1, static_cast<unsigned long long>(kMostPiece)));
  const int piece = max(wanted, kLeastPiece);
  int items = 0;
  for (int first = 0; first < params.num_rows; first += kSparsePlanThreads) {
    const int row = first + thread;
    int count = 0;
    if (row < params.num_rows) {
      count = (ScoredTiles(params, rows, row, rows.tile_rows[row]) + piece - 1) / piece;
    }
    int all;
    const int before = SumBefore(count, shared.warp_sums, &all);
    if (row < params.num_rows) rows.score_items[row] = items + before;
    items += all;
  }
  if (thread == 0) {
    rows.score_items[params.num_rows] = items;
    rows.starts[params.num_rows] = params.num_rows;
    *rows.score_piece = piece * kScoredEntries;
  }
}

}  // namespace outrider::cuda
