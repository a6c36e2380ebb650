// A cluster of eight blocks takes some rows, a block a segment of the columns of each stream, a
// thread four neighbouring columns of it in all streams and rows. Streams are read and written
// once.
#pragma once

#include "outrider/kernels/cuda/hopper/cluster.cuh"
#include "outrider/kernels/cuda/hyper/hyper_weights.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kHyperBlocks =
    8;  // of a cluster: part of a row's arithmetic, as it is for ever
inline constexpr int kHyperSumRoom = 32;  // sums of a row, its squares and room

/// kRows: of a cluster. kThreads: of a block; four times as many columns are its segment at most.
template <int kRows, int kThreads>
struct HyperShared {
  static constexpr int kWarps = kThreads / 32;
  float warp_sums[kRows][kWarps][kHyperSumRoom];
  float sums[kRows][kHyperSumRoom];  // of the block
  float weights[kRows][kHyperSums];
  float warp_squares[kRows][kWarps];  // of mixtures
  float squares[kRows];               // of the block's
};

/// Lane i gets, in values[0], the sum over the lanes of values[i] of 2 * kHalf: in every step a
/// lane keeps half of its values and gives the others to its partner.
template <int kHalf = 16>
__device__ __forceinline__ float SumByLane(float (&values)[32]) {
  const bool upper = (threadIdx.x & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float kept = upper ? values[i + kHalf] : values[i];
    const float given = upper ? values[i] : values[i + kHalf];
    values[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, given, kHalf));
  }
  if constexpr (kHalf > 1) return SumByLane<kHalf / 2>(values);
  return values[0];
}

__device__ __forceinline__ float Dot(float4 v, float4 w, float sum) {
  sum = __fmaf_rn(v.x, w.x, sum);
  sum = __fmaf_rn(v.y, w.y, sum);
  sum = __fmaf_rn(v.z, w.z, sum);
  return __fmaf_rn(v.w, w.w, sum);
}

__device__ __forceinline__ float4 LoadRow(const void* rows, DType dtype, int64_t at) {
  return dtype == DType::kF32 ? LoadFour(static_cast<const float*>(rows) + at)
                              : LoadFour(static_cast<const __nv_bfloat16*>(rows) + at);
}
__device__ __forceinline__ void StoreRow(void* rows, DType dtype, int64_t at, float4 v) {
  if (dtype == DType::kF32) {
    StoreFour(static_cast<float*>(rows) + at, v);
  } else {
    StoreFour(static_cast<__nv_bfloat16*>(rows) + at, v);
  }
}

/// Four columns of a row: its streams, what is added to them, their mean. Stored where they change.
__device__ __forceinline__ void TakeStreams(const HyperRowsParams& params, int64_t row, int column,
                                            float4 (&x)[kHyperStreams]) {
  float* const at = params.streams + row * params.streams_stride + column;
#pragma unroll
  for (int j = 0; j < kHyperStreams; ++j) x[j] = LoadFour(at + int64_t{j} * params.hidden);
  if (params.y != nullptr) {
    const float4 y = LoadRow(params.y, params.y_dtype, row * params.y_stride + column);
    const float* const post = params.add_weights + row * kHyperWeights;
    const float* const comb = post + kHyperStreams;
    float4 sums[kHyperStreams];
#pragma unroll
    for (int k = 0; k < kHyperStreams; ++k) {
      sums[k] = y * post[k];
#pragma unroll
      for (int j = 0; j < kHyperStreams; ++j) {
        sums[k] = MultiplyAdd(x[j], comb[j * kHyperStreams + k], sums[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kHyperStreams; ++k) {
      x[k] = sums[k];
      StoreFour(at + int64_t{k} * params.hidden, x[k]);
    }
  }
  if (params.mean != nullptr) {
    float4 sum = x[0] * 0.25F;
#pragma unroll
    for (int j = 1; j < kHyperStreams; ++j) sum = MultiplyAdd(x[j], 0.25F, sum);
    StoreRow(params.mean, params.mean_dtype, row * params.mean_stride + column, sum);
  }
}

/// This thread's part of the sums of its rows: fn times the streams, then their squares.
template <int kRows, int kSums>
__device__ __forceinline__ void AddProducts(const HyperRowsParams& params, int column,
                                            const float4 (&x)[kRows][kHyperStreams],
                                            float (&sums)[kRows][kHyperSumRoom]) {
  const float* const fn = params.fn + column;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int j = 0; j < kHyperStreams; ++j) {
      const float4 w = LoadFour(fn + (int64_t{s} * kHyperStreams + j) * params.hidden);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r][s] = Dot(x[r][j], w, sums[r][s]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kHyperStreams; ++j) sums[r][kSums] = AddSquares(x[r][j], sums[r][kSums]);
  }
}

/// Rows first_row .. first_row + kRows - 1, those below `rows`. All threads of the blocks of a
/// cluster. kSums: of a row, 0 where nothing is made of the streams.
template <int kRows, int kThreads, int kSums>
__device__ __forceinline__ void RunHyperRows(const HyperRowsParams& params, int first_row, int rows,
                                             HyperShared<kRows, kThreads>& shared) {
  constexpr int kWarps = kThreads / 32;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int rank = static_cast<int>(ClusterRank());
  const int segment = ((params.hidden / 4 + kHyperBlocks - 1) / kHyperBlocks) * 4;
  const int column = rank * segment + thread * 4;
  const bool has_columns = thread * 4 < segment && column < params.hidden;
  float4 x[kRows][kHyperStreams] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (has_columns && first_row + r < rows) TakeStreams(params, first_row + r, column, x[r]);
  }
  if constexpr (kSums > 0) {
    float sums[kRows][kHyperSumRoom] = {};
    if (has_columns) AddProducts<kRows, kSums>(params, column, x, sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) shared.warp_sums[r][warp][lane] = SumByLane(sums[r]);
    __syncthreads();
    // A warp per row.
    for (int r = warp; r < kRows; r += kWarps) {
      float sum = shared.warp_sums[r][0][lane];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, shared.warp_sums[r][w][lane]);
      shared.sums[r][lane] = sum;
    }
    ClusterArrive();
    ClusterWait();
    for (int r = warp; r < kRows; r += kWarps) {
      float sum = LoadRemote(&shared.sums[r][lane], 0);
#pragma unroll
      for (int block = 1; block < kHyperBlocks; ++block) {
        sum = __fadd_rn(sum, LoadRemote(&shared.sums[r][lane], block));
      }
      const float squares = __shfl_sync(~0u, sum, kSums);
      const float inverse = NormFactor(squares, kHyperStreams * params.hidden, params.norm_epsilon);
      MixWeights(params, sum, inverse, shared.weights[r]);
      __syncwarp();
      const bool gives_weights = kSums == kHyperSums && rank == 0 && first_row + r < rows;
      if (gives_weights && lane < kHyperWeights) {
        params.weights[int64_t{first_row + r} * kHyperWeights + lane] =
            shared.weights[r][kHyperStreams + lane];
      }
    }
    __syncthreads();
    float4 u[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has_columns || first_row + r >= rows) continue;
      u[r] = x[r][0] * shared.weights[r][0];
#pragma unroll
      for (int j = 1; j < kHyperStreams; ++j) {
        u[r] = MultiplyAdd(x[r][j], shared.weights[r][j], u[r]);
      }
      if (params.mixture != nullptr) {
        StoreFour(params.mixture + int64_t{first_row + r} * params.mixture_stride + column, u[r]);
      }
    }
    if (params.norm_weight != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float squares = AddSquares(u[r], 0.0F);
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
          squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
        }
        if (lane == 0) shared.warp_squares[r][warp] = squares;
      }
      __syncthreads();
      if (thread < kRows) {
        float squares = shared.warp_squares[thread][0];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
          squares = __fadd_rn(squares, shared.warp_squares[thread][w]);
        }
        shared.squares[thread] = squares;
      }
      ClusterArrive();
      ClusterWait();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float squares = LoadRemote(&shared.squares[r], 0);
#pragma unroll
        for (int block = 1; block < kHyperBlocks; ++block) {
          squares = __fadd_rn(squares, LoadRemote(&shared.squares[r], block));
        }
        if (!has_columns || first_row + r >= rows) continue;
        const float factor = NormFactor(squares, params.hidden, params.norm_epsilon);
        StoreFour(static_cast<__nv_bfloat16*>(params.out) +
                      int64_t{first_row + r} * params.out_stride + column,
                  LoadFour(params.norm_weight + column) * (u[r] * factor));
      }
    }
    // The others may still be reading this block's sums.
    ClusterArrive();
    ClusterWait();
  }
}

}  // namespace outrider::cuda
