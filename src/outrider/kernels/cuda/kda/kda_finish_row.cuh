// A row of one head before the pass over the states: short convolutions, lengths, the decays'
// factors. A block of 128 threads has the head, a thread a channel.
#pragma once

#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/kda/kda_instructions.cuh"
#include "outrider/kernels/cuda/kda/kda_pieces.cuh"
#include "outrider/kernels/cuda/kda/kda_rows.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {

inline constexpr int kKdaLanes = 16;  // of a sum over a head's channels (ops/cpu/lane_sums.h)
inline constexpr float kKdaLengthEps =
    1e-6F;  // beside the squares of a query or key, under the root

/// What weights say of a channel: nothing that kernels write.
struct KdaChannel {
  float4 q_taps;
  float4 k_taps;
  float4 v_taps;
  float bias;
  float decay_scale;
};

__device__ __forceinline__ KdaChannel LoadChannel(const KdaRowsParams& params, int head) {
  const int64_t column = int64_t{head} * kKdaDim + threadIdx.x;
  return {LoadFour(params.q_taps + column * kKdaConv), LoadFour(params.k_taps + column * kKdaConv),
          LoadFour(params.v_taps + column * kKdaConv), params.decay_bias[column],
          RoundedExp(params.decay_log[head])};
}

/// Where the rows of a request stand, for one head.
struct KdaRowSource {
  const KdaRowsParams& params;
  const KdaRequest& request;
  const float* kept;      // the head's kept rows
  const float* restored;  // the rows [3, 3 D] before a restored state, or null
  int column;             // of q, k and v

  __device__ __forceinline__ int64_t RowOf(int position) const {
    return request.first_row + (position - request.context);
  }

  /// Query, key or value (part 0, 1, 2) of the thread's channel before the convolution.
  __device__ __forceinline__ float Before(int part, int position) const {
    if (position < 0) return 0.0F;
    const int channel = static_cast<int>(threadIdx.x);
    if (position >= request.context) {
      const float* const x = part == 0 ? params.q : part == 1 ? params.k : params.v;
      return x[RowOf(position) * params.stride + column];
    }
    if (restored != nullptr) {
      const int row = position - (request.context - (kKdaConv - 1));
      return restored[(row * 3 + part) * kKdaDim + channel];
    }
    return KeptRow(kept, position)[part * kKdaDim + channel];
  }
};

__device__ __forceinline__ KdaRowSource SourceOf(const KdaRowsParams& params,
                                                 const KdaRequest& request, int number, int head) {
  const KdaStep& step = params.step;
  const int piece = params.memory.first_head + head;
  const float* const restored =
      request.restores == 0
          ? nullptr
          : StatePiece(params.memory, step.restored_pages + int64_t{number} * step.state_stride,
                       piece) +
                kKdaDim * kKdaDim;
  return {params, request,
          RowPiece(params.memory, step.row_pages + int64_t{number} * step.row_stride, piece),
          restored, head * kKdaDim + static_cast<int>(threadIdx.x)};
}

/// The thread's channel of a row and of the three rows before it, of query, key and value.
struct KdaWindow {
  float x[3][kKdaConv];

  /// All but the row itself.
  __device__ __forceinline__ void Begin(const KdaRowSource& source, int position) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
#pragma unroll
      for (int i = 0; i < kKdaConv - 1; ++i) {
        x[part][i] = source.Before(part, position - (kKdaConv - 1) + i);
      }
    }
  }
  /// The row itself.
  __device__ __forceinline__ void Take(const KdaRowSource& source, int position) {
#pragma unroll
    for (int part = 0; part < 3; ++part) x[part][kKdaConv - 1] = source.Before(part, position);
  }
  /// To the next row.
  __device__ __forceinline__ void Shift() {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
#pragma unroll
      for (int i = 0; i < kKdaConv - 1; ++i) x[part][i] = x[part][i + 1];
    }
  }
  __device__ __forceinline__ float Convolve(int part, const float4& taps) const {
    float sum = __fmul_rn(taps.x, x[part][0]);
    sum = __fadd_rn(sum, __fmul_rn(taps.y, x[part][1]));
    sum = __fadd_rn(sum, __fmul_rn(taps.z, x[part][2]));
    sum = __fadd_rn(sum, __fmul_rn(taps.w, x[part][3]));
    return __fmul_rn(sum, Sigmoid(sum));
  }
};

__device__ __forceinline__ float DecayFactor(const KdaRowsParams& params, float projected,
                                             const KdaChannel& channel) {
  const float x = __fadd_rn(projected, channel.bias);
  if (params.bounded) {
    return RoundedExp(__fmul_rn(params.decay_bound, Sigmoid(__fmul_rn(channel.decay_scale, x))));
  }
  const float softplus = x > 20.0F ? x : log1pf(RoundedExp(x));
  return RoundedExp(__fmul_rn(-channel.decay_scale, softplus));
}

struct KdaLengths {
  float channels[2][kKdaDim];
  float scales[2];
};

struct KdaFinishedRow {
  float q;
  float k;
  float v;
};

/// The row that the window is at, by all threads of the block. Sums as LaneDot's.
__device__ __forceinline__ KdaFinishedRow FinishRow(const KdaWindow& window,
                                                    const KdaChannel& channel, KdaLengths& shared) {
  const float q = window.Convolve(0, channel.q_taps);
  const float k = window.Convolve(1, channel.k_taps);
  const float v = window.Convolve(2, channel.v_taps);
  const int thread = static_cast<int>(FreshThread());
  shared.channels[0][thread] = q;
  shared.channels[1][thread] = k;
  __syncthreads();
  if (thread < 2 * kKdaLanes) {
    const float* const x = shared.channels[thread / kKdaLanes];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kKdaDim; i += kKdaLanes) {
      const float value = x[i + thread % kKdaLanes];
      sum = __fadd_rn(sum, __fmul_rn(value, value));
    }
#pragma unroll
    for (int half = kKdaLanes / 2; half > 0; half /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
    }
    if (thread % kKdaLanes == 0) {
      const float scale = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(sum, kKdaLengthEps)));
      shared.scales[thread / kKdaLanes] =
          thread == 0 ? __fdiv_rn(scale, __fsqrt_rn(static_cast<float>(kKdaDim))) : scale;
    }
  }
  __syncthreads();
  return {__fmul_rn(q, shared.scales[0]), __fmul_rn(k, shared.scales[1]), v};
}

}  // namespace outrider::cuda
