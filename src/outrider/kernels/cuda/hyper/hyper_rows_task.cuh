// A cluster of eight blocks takes some rows, a block a segment of the columns of each stream, a
// thread four neighbouring columns of it in all streams and rows. Streams are read and written
// once. What needs no other kernel is asked for before the wait for it: fn, which is 1.6 MB of a
// layer of 4096 columns. Weights of the addition are for the next launch: a warp makes them beside
// the mixture, of a single row one that has no columns. Longer than most files: all of it is one
// launch.
#pragma once

#include "outrider/kernels/cuda/hopper/cluster.cuh"
#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/hyper/hyper_weights.cuh"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kHyperBlocks =
    8;  // of a cluster: part of a row's arithmetic, as it is for ever
inline constexpr int kHyperSumRoom = 32;  // sums of a row, its squares and room

/// Threads of a block: of a single row a warp more makes the weights of the addition.
template <int kRows, int kThreads, int kSums>
inline constexpr int kHyperThreads = kThreads + (kRows == 1 && kSums > 0 ? 32 : 0);

/// kRows: of a cluster. kThreads: of a block, with columns; four times as many columns are its
/// segment at most.
template <int kRows, int kThreads>
struct HyperShared {
  static constexpr int kWarps = kThreads / 32;
  float warp_sums[kRows][kWarps][kHyperSumRoom];
  float sums[kRows][kHyperSumRoom];  // of the block
  float pre[kRows][kHyperStreams];
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

/// Four columns of what is added to a row's streams: as NormRows would sum the terms.
__device__ __forceinline__ float4 AddedTo(const HyperRowsParams& params, int64_t row, int column) {
  if (params.terms == nullptr) {
    return LoadRow(params.y, params.y_dtype, row * params.y_stride + column);
  }
  constexpr int kTogether = 8;  // are asked for at once
  const float* const terms = params.terms + row * params.num_terms * params.hidden + column;
  const float* const weights = params.term_weights + row * params.num_terms;
  float4 last = make_float4(0, 0, 0, 0);
  if (params.last_term != nullptr) {
    last = LoadFour(params.last_term + row * params.hidden + column);
  }
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int begin = 0; begin < params.num_terms; begin += kTogether) {
    float4 values[kTogether] = {};
    float of_values[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i < params.num_terms) {
        values[i] = LoadFour(terms + static_cast<int64_t>(begin + i) * params.hidden);
        of_values[i] = weights[begin + i];
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (begin + i < params.num_terms) sum = MultiplyAdd(values[i], of_values[i], sum);
    }
  }
  if (params.last_term != nullptr) sum = sum + last;
  return make_float4(0, 0, 0, 0) + sum;  // not -0
}

/// Four columns of some rows: their streams, what is added to them, their mean. Stored where they
/// change, when all rows have been asked for.
template <int kRows>
__device__ __forceinline__ void TakeStreams(const HyperRowsParams& params, int first_row, int rows,
                                            int column, float4 (&x)[kRows][kHyperStreams]) {
  const auto at = [&](int r) {
    return params.streams + int64_t{first_row + r} * params.streams_stride + column;
  };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first_row + r >= rows) continue;
#pragma unroll
    for (int j = 0; j < kHyperStreams; ++j) x[r][j] = LoadFour(at(r) + int64_t{j} * params.hidden);
  }
  if (params.y != nullptr || params.terms != nullptr) {
    float4 y[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r < rows) y[r] = AddedTo(params, first_row + r, column);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= rows) continue;
      const float* const post = params.add_weights + int64_t{first_row + r} * kHyperWeights;
      const float* const comb = post + kHyperStreams;
      float4 sums[kHyperStreams];
#pragma unroll
      for (int k = 0; k < kHyperStreams; ++k) {
        sums[k] = y[r] * post[k];
#pragma unroll
        for (int j = 0; j < kHyperStreams; ++j) {
          sums[k] = MultiplyAdd(x[r][j], comb[j * kHyperStreams + k], sums[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < kHyperStreams; ++k) x[r][k] = sums[k];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= rows) continue;
#pragma unroll
      for (int k = 0; k < kHyperStreams; ++k) {
        StoreFour(at(r) + int64_t{k} * params.hidden, x[r][k]);
      }
    }
  }
  if (params.mean == nullptr) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first_row + r >= rows) continue;
    float4 sum = x[r][0] * 0.25F;
#pragma unroll
    for (int j = 1; j < kHyperStreams; ++j) sum = MultiplyAdd(x[r][j], 0.25F, sum);
    StoreRow(params.mean, params.mean_dtype, (first_row + r) * params.mean_stride + column, sum);
  }
}

/// A block's columns of a stream.
__device__ __forceinline__ int HyperSegment(const HyperRowsParams& params) {
  return (params.hidden / 4 + kHyperBlocks - 1) / kHyperBlocks * 4;
}

/// Weights that a thread has before the wait: columns of fn of the first kCount / 4 sums, of all
/// streams, while the block's part of the others is on its way to L2; what the lane's sum becomes;
/// columns of the norm.
template <int kSums, int kCount>
struct EarlyWeights {
  float4 values[kCount > 0 ? kCount : 1];
  float4 norm = {};
  float scale = 0.0F;  // of sum number `lane`
  float base = 0.0F;

  __device__ __forceinline__ EarlyWeights(const HyperRowsParams& params, int rank) : values{} {
    if constexpr (kSums > 0) Load(params, rank);
  }

 private:
  __device__ __forceinline__ void Load(const HyperRowsParams& params, int rank) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kSums) {
      scale = params.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2];
      base = params.base[lane];
    }
    const int segment = HyperSegment(params);
    const int thread = static_cast<int>(threadIdx.x);
    const int first = rank * segment;
    const int columns = min(segment, params.hidden - first);  // of the block
    if (columns <= 0) return;
    if (params.norm_weight != nullptr && thread * 4 < columns) {
      norm = LoadFour(params.norm_weight + first + thread * 4);
    }
    constexpr int kLeft = kSums * kHyperStreams - kCount;
    if (kCount > 0 && thread * 4 < columns) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = LoadFour(params.fn + int64_t{i} * params.hidden + first + thread * 4);
      }
    }
    if (thread < kLeft) {
      const float* const part = params.fn + int64_t{kCount + thread} * params.hidden + first;
      PrefetchIntoL2(part, columns * static_cast<int>(sizeof(float)));
    }
  }
};

/// This thread's part of the sums of a row: fn times the streams, then their squares.
template <int kSums, int kEarly>
__device__ __forceinline__ void AddProducts(const HyperRowsParams& params, int column,
                                            const EarlyWeights<kSums, kEarly>& early,
                                            const float4 (&x)[kHyperStreams],
                                            float (&sums)[kHyperSumRoom]) {
  const float* const fn = params.fn + column;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int j = 0; j < kHyperStreams; ++j) {
      constexpr int kLast = kEarly > 0 ? kEarly - 1 : 0;
      const int i = s * kHyperStreams + j;
      const float4 w = i < kEarly ? early.values[i < kLast ? i : kLast]
                                  : LoadFour(fn + int64_t{i} * params.hidden);
      sums[s] = Dot(x[j], w, sums[s]);
    }
  }
#pragma unroll
  for (int j = 0; j < kHyperStreams; ++j) sums[kSums] = AddSquares(x[j], sums[kSums]);
}

/// A warp's sums of its rows, into shared memory. Of several rows a few sums at a time, so that
/// there are registers for many loads of fn on their way.
template <int kRows, int kThreads, int kSums, int kEarly>
__device__ __forceinline__ void SumByWarp(const HyperRowsParams& params, bool has_columns,
                                          int column, const EarlyWeights<kSums, kEarly>& early,
                                          const float4 (&x)[kRows][kHyperStreams],
                                          HyperShared<kRows, kThreads>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kRows == 1) {
    float sums[kHyperSumRoom] = {};
    if (has_columns) AddProducts<kSums, kEarly>(params, column, early, x[0], sums);
    shared.warp_sums[0][warp][lane] = SumByLane(sums);
  } else {
    constexpr int kTogether = kHyperSumRoom / kRows;  // of a row
    static_assert(kEarly == 0);
    const float* const fn = params.fn + column;
#pragma unroll
    for (int first = 0; first < kSums; first += kTogether) {
      float sums[kHyperSumRoom] = {};  // [rows][kTogether]
      if (has_columns) {
#pragma unroll
        for (int s = 0; s < kTogether && first + s < kSums; ++s) {
#pragma unroll
          for (int j = 0; j < kHyperStreams; ++j) {
            const float4 w =
                LoadFour(fn + int64_t{(first + s) * kHyperStreams + j} * params.hidden);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              float& sum = sums[r * kTogether + s];
              sum = Dot(x[r][j], w, sum);
            }
          }
        }
      }
      const float sum = SumByLane(sums);
      const int of_row = first + lane % kTogether;
      if (of_row < kSums) shared.warp_sums[lane / kTogether][warp][of_row] = sum;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float squares = 0.0F;
#pragma unroll
      for (int j = 0; j < kHyperStreams; ++j) squares = AddSquares(x[r][j], squares);
      // In the order of SumByLane.
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
      }
      if (lane == 0) shared.warp_sums[r][warp][kSums] = squares;
    }
  }
}

/// What a row's weights are made of (MixInput), of the sums of all blocks of the cluster. A warp.
template <int kSums, int kEarly>
__device__ __forceinline__ float InputOfRow(const HyperRowsParams& params,
                                            const EarlyWeights<kSums, kEarly>& early,
                                            const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = LoadRemote(sums + lane, 0);
#pragma unroll
  for (int block = 1; block < kHyperBlocks; ++block) {
    sum = __fadd_rn(sum, LoadRemote(sums + lane, block));
  }
  const float squares = __shfl_sync(~0u, sum, kSums);
  const float inverse = NormFactor(squares, kHyperStreams * params.hidden, params.norm_epsilon);
  return MixInput(sum, inverse, early.scale, early.base);
}

/// Rows first_row .. first_row + kRows - 1, those below `rows`. All threads of the blocks of a
/// cluster: of kThreads with columns and, of one row, a warp more. kSums: of a row, 0 where nothing
/// is made of the streams.
template <int kRows, int kThreads, int kSums, int kEarly>
__device__ __forceinline__ void RunHyperRows(const HyperRowsParams& params, int first_row, int rows,
                                             const EarlyWeights<kSums, kEarly>& early,
                                             HyperShared<kRows, kThreads>& shared) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kRows <= kWarps, "a warp has one row at most");
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int rank = static_cast<int>(ClusterRank());
  const int segment = HyperSegment(params);
  const int column = rank * segment + thread * 4;
  const bool has_columns = thread < kThreads && thread * 4 < segment && column < params.hidden;
  float4 x[kRows][kHyperStreams] = {};
  if (has_columns) TakeStreams<kRows>(params, first_row, rows, column, x);
  if constexpr (kSums > 0) {
    constexpr bool kMixes = kSums == kHyperSums;
    constexpr int kColumnsBarrier = 1;  // threads with columns
    const auto add_weights = [&](int r) {
      return params.weights + int64_t{first_row + r} * kHyperWeights;
    };
    const bool is_extra_warp = kRows == 1 && warp == kWarps;
    if (!is_extra_warp) {
      SumByWarp<kRows, kThreads, kSums, kEarly>(params, has_columns, column, early, x, shared);
    }
    __syncthreads();  // in one place of the code for all
    if (is_extra_warp) {
      ClusterArrive();
      ClusterWait();
      const bool gives = kMixes && rank == 0;
      const float input = gives ? InputOfRow(params, early, shared.sums[0]) : 0.0F;
      if (params.norm_weight != nullptr) ClusterArrive();
      if (gives) MixAdded(params, input, add_weights(0));
      if (params.norm_weight != nullptr) ClusterWait();
      ClusterArrive();
      ClusterWait();
      return;
    }
    if (warp < kRows) {  // a row each
      float sum = shared.warp_sums[warp][0][lane];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, shared.warp_sums[warp][w][lane]);
      shared.sums[warp][lane] = sum;
    }
    ClusterArrive();
    ClusterWait();
    float input = 0.0F;
    if (warp < kRows) {
      input = InputOfRow(params, early, shared.sums[warp]);
      MixPre(params, input, shared.pre[warp]);
    }
    NamedSync(kColumnsBarrier, kThreads);
    float4 u[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has_columns || first_row + r >= rows) continue;
      u[r] = x[r][0] * shared.pre[r][0];
#pragma unroll
      for (int j = 1; j < kHyperStreams; ++j) u[r] = MultiplyAdd(x[r][j], shared.pre[r][j], u[r]);
      if (params.mixture != nullptr) {
        StoreFour(params.mixture + int64_t{first_row + r} * params.mixture_stride + column, u[r]);
      }
    }
    const bool gives_weights =
        kMixes && kRows > 1 && rank == 0 && warp < kRows && first_row + warp < rows;
    if (params.norm_weight == nullptr) {
      if (gives_weights) MixAdded(params, input, add_weights(warp));
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float squares = AddSquares(u[r], 0.0F);
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
          squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
        }
        if (lane == 0) shared.warp_squares[r][warp] = squares;
      }
      NamedSync(kColumnsBarrier, kThreads);
      if (thread < kRows) {
        float squares = shared.warp_squares[thread][0];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
          squares = __fadd_rn(squares, shared.warp_squares[thread][w]);
        }
        shared.squares[thread] = squares;
      }
      ClusterArrive();
      if (gives_weights) MixAdded(params, input, add_weights(warp));
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
                  early.norm * (u[r] * factor));
      }
    }
    // The others may still be reading this block's sums.
    ClusterArrive();
    ClusterWait();
  }
}

}  // namespace outrider::cuda
