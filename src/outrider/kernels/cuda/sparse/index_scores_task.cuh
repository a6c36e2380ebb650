// Index scores on Hopper: tiles of 64 keys on wgmma's M against 256 columns (row, head) on N.
//
// Operands are bf16, or e4m3 codes with a scale per key, which multiplies its scores at the end;
// the scales of queries are in the weights.
//
// A block takes pieces of work from the step's plan (sparse_rows.h): a tile of rows of one request
// (4 rows of 64 heads, 8 of 32) and a range of keys. One warp walks ahead: it brings the rows'
// queries and weights (two buffers) and the keys (a ring of stages) through the copy engine. Two
// warpgroups with half of the rows each, or every other tile where rows are no more than half, turn
// a tile's 64 x 128 products into scores: of the columns of one row a thread has a quarter, which
// it adds in order; then the four lanes that share a key add theirs. So a score's sum has the same
// order in every place of a tile.
//
// Rows behind a tile's last and keys behind the last that a row sees are computed from whatever is
// there and not stored: neither reaches another row's or key's sum.
#pragma once

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/hopper/wgmma_kmajor.cuh"
#include "outrider/kernels/cuda/sparse/index_scores.h"

namespace outrider::cuda {

inline constexpr int kScoreTileKeys = 64;
inline constexpr int kScoreGroups = 2;  // warpgroups
inline constexpr int kGroupColumns = kIndexColumns / kScoreGroups;
inline constexpr int kScoreWarps = kScoreGroups * 4;
inline constexpr int kIndexScoreThreads = kScoreWarps * 32 + 32;
inline constexpr int kMostTileRows = kIndexColumns / 8;
inline constexpr int kQueryBoxColumns = 8;  // (row, head) pairs of a copy of queries

struct ScoreArguments {
  int first_row;
  int end_row;
  SparseRows rows;
  int heads;
  const float* weights;
  int64_t weights_stride;
  const int* block_table;
  int block_table_stride;
  int page_shift;
  // Of codes: the first page's scales; bytes from page to page.
  const uint8_t* scales;
  int64_t page_stride;
  float* scores;
  int64_t scores_stride;
};

struct ScoreTensorMaps {
  // Column groups have 128 bytes: 64 columns of bf16, 128 of codes.
  CUtensorMap q;     // [column groups][(row, head) pairs], box 128 bytes x 8
  CUtensorMap keys;  // [pages][column groups][entries], box 128 bytes x min(page, 64)
};

/// A piece of work. rows 0: there are no more.
struct ScorePiece {
  int first_row;
  int rows;
  int key_begin;
  int key_end;
  int visible[kMostTileRows];
};

template <bool kCodes>
struct IndexScoresShared {
  static constexpr int kScoreStages = kCodes ? 10 : 5;
  static constexpr int kColumnGroups = kCodes ? 1 : 2;
  static constexpr uint32_t kKeyGroupBytes = kScoreTileKeys * 128;
  static constexpr uint32_t kQueryGroupBytes = kIndexColumns * 128;
  static constexpr uint32_t kScaleBytes = kCodes ? kScoreTileKeys * sizeof(float) : 0;
  static constexpr uint32_t kStageBytes = kColumnGroups * kKeyGroupBytes + kScaleBytes;

  // [column groups][8 row groups][1024]
  alignas(1024) uint8_t keys[kScoreStages][kColumnGroups * kKeyGroupBytes];
  alignas(1024) uint8_t q[2][kColumnGroups * kQueryGroupBytes];  // ...[32 row groups][1024]
  alignas(16) float scales[kCodes ? kScoreStages : 1][kScoreTileKeys];
  alignas(16) float weights[2][kIndexColumns];
  ScorePiece piece[2];
  uint64_t keys_full[kScoreStages];
  uint64_t keys_empty[kScoreStages];
  uint64_t q_full[2];
  uint64_t q_empty[2];
};

/// The row in [begin, end) whose tile has piece `item`: prefix[row] <= item < prefix[row + 1]. All
/// lanes of a warp.
__device__ __forceinline__ int RowOfPiece(const int* prefix, int begin, int end, int item) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  while (end - begin > 1) {
    const int step = (end - begin + 31) / 32;
    const int probe = begin + lane * step;
    const bool reached = probe < end && prefix[probe] <= item;
    const int last = 31 - __clz(static_cast<int>(__ballot_sync(~0u, reached)));
    end = min(end, begin + (last + 1) * step);
    begin += last * step;
  }
  return begin;
}

/// The warp that brings queries, weights and keys.
template <bool kCodes>
class ScoreProducer {
  using Shared = IndexScoresShared<kCodes>;

 public:
  __device__ ScoreProducer(const ScoreArguments& args, const ScoreTensorMaps& maps, Shared& shared)
      : args_(args), maps_(maps), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void Run() {
    const int* prefix = args_.rows.score_items;
    const int end = prefix[args_.end_row];
    piece_keys_ = *args_.rows.score_piece;
    int count = 0;
    for (int item = prefix[args_.first_row] + static_cast<int>(blockIdx.x); item < end;
         item += static_cast<int>(gridDim.x), ++count) {
      const int row = RowOfPiece(prefix, args_.first_row, args_.end_row, item);
      BringQueries(row, item - prefix[row], count);
      BringKeys(shared_.piece[count % 2].key_begin, shared_.piece[count % 2].key_end,
                args_.rows.request[row]);
    }
    BarrierWait(&shared_.q_empty[count % 2], (count / 2 & 1) ^ 1);
    if (lane_ == 0) {
      shared_.piece[count % 2].rows = 0;
      BarrierArrive(&shared_.q_full[count % 2]);
    }
  }

 private:
  __device__ void BringQueries(int row, int index, int count) {
    const int slot = count % 2;
    BarrierWait(&shared_.q_empty[slot], (count / 2 & 1) ^ 1);
    ScorePiece& piece = shared_.piece[slot];
    const int rows = args_.rows.tile_rows[row];
    if (lane_ < rows) piece.visible[lane_] = args_.rows.visible[row + lane_];
    if (lane_ == 0) {
      piece.first_row = row;
      piece.rows = rows;
      piece.key_begin = index * piece_keys_;
      piece.key_end = min(args_.rows.visible[row + rows - 1], piece.key_begin + piece_keys_);
    }
    __syncwarp();
    if (ElectOne()) {
      const int columns = rows * args_.heads;
      BarrierArriveExpect(&shared_.q_full[slot], static_cast<uint32_t>(columns) *
                                                     (Shared::kColumnGroups * 128 + sizeof(float)));
#pragma unroll 1
      for (int column = 0; column < columns; column += kQueryBoxColumns) {
#pragma unroll
        for (int group = 0; group < Shared::kColumnGroups; ++group) {
          TensorLoad4d(shared_.q[slot] + group * Shared::kQueryGroupBytes + column * 128, &maps_.q,
                       &shared_.q_full[slot], kEvictNormal, 0, row * args_.heads + column, group,
                       0);
        }
      }
#pragma unroll 1
      for (int i = 0; i < rows; ++i) {
        BulkLoad(&shared_.weights[slot][i * args_.heads],
                 args_.weights + (row + i) * args_.weights_stride,
                 static_cast<uint32_t>(args_.heads) * sizeof(float), &shared_.q_full[slot]);
      }
    }
    __syncwarp();
  }

  __device__ void BringKeys(int begin, int end, int request) {
    const int* table = args_.block_table + static_cast<int64_t>(request) * args_.block_table_stride;
    const int last_page = (end - 1) >> args_.page_shift;
    const int box_shift = min(args_.page_shift, 6);
    const int boxes = kScoreTileKeys >> box_shift;
    int page = 0;  // of one of the next 32 boxes
    int box = 0;
    for (int key = begin; key < end; key += kScoreTileKeys, ++stages_) {
      if (box % 32 == 0) {
        page = table[min((key + (lane_ << box_shift)) >> args_.page_shift, last_page)];
      }
      const int stage = stages_ % Shared::kScoreStages;
      BarrierWait(&shared_.keys_empty[stage], (stages_ / Shared::kScoreStages & 1) ^ 1);
      if (lane_ == 0) BarrierArriveExpect(&shared_.keys_full[stage], Shared::kStageBytes);
      __syncwarp();
      for (int i = 0; i < boxes; ++i, ++box) {
        const int of_box = __shfl_sync(~0u, page, box % 32);
        const int in_page = (key + (i << box_shift)) & ((1 << args_.page_shift) - 1);
        if (ElectOne()) {
#pragma unroll
          for (int group = 0; group < Shared::kColumnGroups; ++group) {
            TensorLoad4d(
                shared_.keys[stage] + group * Shared::kKeyGroupBytes + (i << box_shift) * 128,
                &maps_.keys, &shared_.keys_full[stage], kEvictNormal, 0, in_page, group, of_box);
          }
          if constexpr (kCodes) {
            BulkLoad(&shared_.scales[stage][i << box_shift],
                     args_.scales + of_box * args_.page_stride + in_page * sizeof(float),
                     static_cast<uint32_t>(sizeof(float)) << box_shift, &shared_.keys_full[stage]);
          }
        }
        __syncwarp();
      }
    }
  }

  const ScoreArguments& args_;
  const ScoreTensorMaps& maps_;
  Shared& shared_;
  int lane_;
  int piece_keys_ = 0;
  int stages_ = 0;  // filled so far
};

/// Adds up the heads of each row of a warpgroup and stores the scores of a tile of keys.
/// `products`: of the keys key0 .. key0 + 63 with the first kColumns of the group's columns, as
/// wgmma leaves them.
/// `scales`: of this thread's two keys.
template <int kHeads, int kColumns>
__device__ __forceinline__ void StoreScores(const float (&products)[kColumns / 2],
                                            const float (&scales)[2], const float* weights,
                                            const ScorePiece& piece, int first_row_of_group,
                                            int key0, float* scores, int64_t scores_stride) {
  constexpr int kRows = kColumns / kHeads;
  constexpr int kSteps = kHeads / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = key0 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row_of_group + i;
    if (row >= piece.rows) return;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const int at = i * kSteps + j;
      const float2 w = *reinterpret_cast<const float2*>(weights + 8 * at + lane % 4 * 2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[h] = __fmaf_rn(fmaxf(products[4 * at + 2 * h], 0.0f), w.x, sums[h]);
        sums[h] = __fmaf_rn(fmaxf(products[4 * at + 2 * h + 1], 0.0f), w.y, sums[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sums[h] = __fadd_rn(sums[h], __shfl_xor_sync(~0u, sums[h], 1));
      sums[h] = __fadd_rn(sums[h], __shfl_xor_sync(~0u, sums[h], 2));
      sums[h] = __fmul_rn(sums[h], scales[h]);
    }
    // Two of the four lanes that share the sums store one each.
    const int h = lane % 2;
    const int of_lane = key + 8 * h;
    if (lane % 4 < 2 && of_lane < piece.visible[row]) {
      scores[row * scores_stride + of_lane] = h == 0 ? sums[0] : sums[1];
    }
  }
}

/// A tile's products with kColumns columns, 64 or 128, one chain over the 128 dimensions.
template <bool kCodes, int kColumns>
__device__ __forceinline__ void MultiplyKeys(uint64_t keys, uint64_t q,
                                             float (&products)[kColumns / 2]) {
  using Shared = IndexScoresShared<kCodes>;
  PinRegisters(products);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < 4 * Shared::kColumnGroups; ++step) {
    const uint64_t a = Advance(keys, step / 4 * Shared::kKeyGroupBytes + step % 4 * 32);
    const uint64_t b = Advance(q, step / 4 * Shared::kQueryGroupBytes + step % 4 * 32);
    if constexpr (!kCodes) {
      WgmmaKMajor<kColumns>::Multiply(products, a, b, step != 0);
    } else if constexpr (kColumns == 64) {
      WgmmaE4m3M64N64(products, a, b, step != 0);
    } else {
      WgmmaE4m3M64N128(products, a, b, step != 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(products);
}

/// A piece's tiles, or every other one, whose rows have no more than kColumns columns of this
/// warpgroup. `stages`: those that went by so far. The products of each width have registers of
/// their own: where two widths shared them, the assembler let no product begin before the one
/// before it had ended.
template <bool kCodes, int kHeads, int kColumns>
__device__ __forceinline__ void ConsumePiece(const ScoreArguments& args,
                                             IndexScoresShared<kCodes>& shared, int slot, int group,
                                             int& stages) {
  using Shared = IndexScoresShared<kCodes>;
  constexpr int kRows = kGroupColumns / kHeads;
  const int key_of_thread = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const ScorePiece& piece = shared.piece[slot];
  const bool shares_rows = piece.rows <= kRows;
  const int half = shares_rows ? 0 : group;  // of the rows
  float* scores = args.scores + (piece.first_row - args.first_row) * args.scores_stride;
  const uint64_t q =
      MakeDescriptor(SharedAddress(shared.q[slot]) + half * kGroupColumns * 128, 16, 1024);
  int turn = 0;
  for (int key = piece.key_begin; key < piece.key_end; key += kScoreTileKeys, ++stages) {
    const int stage = stages % Shared::kScoreStages;
    const bool is_own = !shares_rows || turn == group;
    turn ^= 1;
    BarrierWait(&shared.keys_full[stage], stages / Shared::kScoreStages & 1);
    if (!is_own) {
      BarrierArriveWarp(&shared.keys_empty[stage]);
      continue;
    }
    float products[kColumns / 2];
    MultiplyKeys<kCodes, kColumns>(MakeDescriptor(SharedAddress(shared.keys[stage]), 16, 1024), q,
                                   products);
    float scales[2] = {1.0f, 1.0f};
    if constexpr (kCodes) {
      scales[0] = shared.scales[stage][key_of_thread];
      scales[1] = shared.scales[stage][key_of_thread + 8];
    }
    BarrierArriveWarp(&shared.keys_empty[stage]);
    StoreScores<kHeads, kColumns>(products, scales, shared.weights[slot] + half * kGroupColumns,
                                  piece, half * kRows, key, scores, args.scores_stride);
  }
}

/// A warpgroup with half of the rows or of the tiles.
template <bool kCodes, int kHeads>
__device__ __forceinline__ void ConsumeScores(const ScoreArguments& args,
                                              IndexScoresShared<kCodes>& shared) {
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  int stages = 0;
  for (int count = 0;; ++count) {
    const int slot = count % 2;
    BarrierWait(&shared.q_full[slot], count / 2 & 1);
    const int rows = shared.piece[slot].rows;
    if (rows == 0) break;
    if (rows * kHeads <= 64) {  // the other columns are nobody's
      ConsumePiece<kCodes, kHeads, 64>(args, shared, slot, group, stages);
    } else {
      ConsumePiece<kCodes, kHeads, kGroupColumns>(args, shared, slot, group, stages);
    }
    BarrierArriveWarp(&shared.q_empty[slot]);
  }
}

template <bool kCodes>
__device__ __forceinline__ void ScoreKeys(const ScoreArguments& args, const ScoreTensorMaps& maps,
                                          IndexScoresShared<kCodes>& shared) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < IndexScoresShared<kCodes>::kScoreStages; ++stage) {
      BarrierInit(&shared.keys_full[stage], 1);
      BarrierInit(&shared.keys_empty[stage], kScoreWarps * kWarpArrivals);
    }
    for (int slot = 0; slot < 2; ++slot) {
      BarrierInit(&shared.q_full[slot], 1);
      BarrierInit(&shared.q_empty[slot], kScoreWarps * kWarpArrivals);
    }
    BarrierInitFence();
  }
  __syncthreads();
  LaunchDependents();
  WaitForPriorGrid();
  if (warp == kScoreWarps) {
    ScoreProducer<kCodes>(args, maps, shared).Run();
    return;
  }
  switch (args.heads) {
    case 64:
      ConsumeScores<kCodes, 64>(args, shared);
      break;
    case 32:
      ConsumeScores<kCodes, 32>(args, shared);
      break;
    case 16:
      ConsumeScores<kCodes, 16>(args, shared);
      break;
    default:
      ConsumeScores<kCodes, 8>(args, shared);
  }
}

}  // namespace outrider::cuda
