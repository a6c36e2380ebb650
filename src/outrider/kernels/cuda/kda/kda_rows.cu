// Rows: a block per head and run of rows, a channel per thread. Norms: a warp per head. Gates: four
// numbers per thread.
#include "outrider/base/rounded_exp.h"
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/kda/kda_pieces.cuh"
#include "outrider/kernels/cuda/kda/kda_rows.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kKdaDim;
constexpr int kNormThreads = 256;
constexpr int kGateThreads = 256;
constexpr int kLanes = 16;  // of a sum over a head's channels (ops/cpu/lane_sums.h)
// From so many rows on a block takes several, whose taps it reads once.
constexpr int kManyRows = 1024;
constexpr int kRowsTogether = 4;
constexpr float kLengthEps = 1e-6F;  // beside the squares of a query or key, under the root

struct RowsShared {
  float channels[2][kKdaDim];
  float scales[2];
};

/// What a row of a request reads of the rows before it.
struct RowSource {
  const KdaRowsParams& params;
  const KdaRequest& request;
  const float* kept;      // the head's kept rows
  const float* restored;  // the rows [3, 3 D] before a restored state, or null
  int column;             // of q, k and v

  /// Query, key or value (part 0, 1, 2) of the thread's channel before the convolution.
  __device__ __forceinline__ float Before(int part, int position) const {
    if (position < 0) return 0.0F;
    const int channel = static_cast<int>(threadIdx.x);
    if (position >= request.context) {
      const float* const x = part == 0 ? params.q : part == 1 ? params.k : params.v;
      const int64_t row = request.first_row + (position - request.context);
      return x[row * params.stride + column];
    }
    if (restored != nullptr) {
      const int row = position - (request.context - (kKdaConv - 1));
      return restored[(row * 3 + part) * kKdaDim + channel];
    }
    return KeptRow(kept, position)[part * kKdaDim + channel];
  }

  __device__ __forceinline__ float Convolve(int part, int position, const float4& taps) const {
    float sum = __fmul_rn(taps.x, Before(part, position - 3));
    sum = __fadd_rn(sum, __fmul_rn(taps.y, Before(part, position - 2)));
    sum = __fadd_rn(sum, __fmul_rn(taps.z, Before(part, position - 1)));
    sum = __fadd_rn(sum, __fmul_rn(taps.w, Before(part, position)));
    return __fmul_rn(sum, Sigmoid(sum));
  }
};

__device__ __forceinline__ float DecayFactor(const KdaRowsParams& params, float projected,
                                             float bias, float scale) {
  const float x = __fadd_rn(projected, bias);
  if (params.bounded) {
    return RoundedExp(__fmul_rn(params.decay_bound, Sigmoid(__fmul_rn(scale, x))));
  }
  const float softplus = x > 20.0F ? x : log1pf(RoundedExp(x));
  return RoundedExp(__fmul_rn(-scale, softplus));
}

/// The factors that give a query and a key their lengths, in every thread. Sums as LaneDot's.
__device__ __forceinline__ void Lengths(float q, float k, RowsShared& shared, float& q_scale,
                                        float& k_scale) {
  const int thread = static_cast<int>(threadIdx.x);
  shared.channels[0][thread] = q;
  shared.channels[1][thread] = k;
  __syncthreads();
  if (thread < 2 * kLanes) {
    const float* const x = shared.channels[thread / kLanes];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kKdaDim; i += kLanes) {
      const float value = x[i + thread % kLanes];
      sum = __fadd_rn(sum, __fmul_rn(value, value));
    }
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
    }
    if (thread % kLanes == 0) {
      const float scale = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(sum, kLengthEps)));
      shared.scales[thread / kLanes] =
          thread == 0 ? __fdiv_rn(scale, __fsqrt_rn(static_cast<float>(kKdaDim))) : scale;
    }
  }
  __syncthreads();
  q_scale = shared.scales[0];
  k_scale = shared.scales[1];
}

__global__ void __launch_bounds__(kThreads)
    KdaRowsKernel(const __grid_constant__ KdaRowsParams params, int rows_together) {
  __shared__ RowsShared shared;
  LaunchDependents();
  WaitForPriorGrid();
  const KdaStep& step = params.step;
  const int head = static_cast<int>(blockIdx.y);
  const int column = head * kKdaDim + static_cast<int>(threadIdx.x);
  const float4 q_taps = LoadFour(params.q_taps + int64_t{column} * kKdaConv);
  const float4 k_taps = LoadFour(params.k_taps + int64_t{column} * kKdaConv);
  const float4 v_taps = LoadFour(params.v_taps + int64_t{column} * kKdaConv);
  const float bias = params.decay_bias[column];
  const float decay_scale = RoundedExp(params.decay_log[head]);
  const int first = static_cast<int>(blockIdx.x) * rows_together;
  const int end = min(first + rows_together, step.num_rows);
  for (int row = first; row < end; ++row) {
    const int number = step.row_requests[row];
    if (number < 0) continue;  // all threads alike
    const KdaRequest request = step.requests[number];
    const int piece = params.memory.first_head + head;
    const float* const restored =
        request.restores == 0
            ? nullptr
            : StatePiece(params.memory, step.restored_pages + int64_t{number} * step.state_stride,
                         piece) +
                  kKdaDim * kKdaDim;
    const RowSource source = {
        params, request,
        RowPiece(params.memory, step.row_pages + int64_t{number} * step.row_stride, piece),
        restored, column};
    const int position = request.context + (row - request.first_row);
    const float q = source.Convolve(0, position, q_taps);
    const float k = source.Convolve(1, position, k_taps);
    const float v = source.Convolve(2, position, v_taps);
    float* const decay = params.decay + row * params.decay_stride + column;
    *decay = DecayFactor(params, *decay, bias, decay_scale);
    float q_scale;
    float k_scale;
    Lengths(q, k, shared, q_scale, k_scale);
    const int64_t at = int64_t{row} * params.heads * kKdaDim + column;
    params.q_out[at] = __fmul_rn(q, q_scale);
    params.k_out[at] = __fmul_rn(k, k_scale);
    params.v_out[at] = v;
  }
}

template <typename Output>
__global__ void __launch_bounds__(kNormThreads)
    NormGateKernel(const __grid_constant__ KdaNormGateParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kNormThreads / 32) + threadIdx.x / 32;
  const int64_t row = item / params.heads;
  if (row >= params.num_rows) return;  // whole warps
  const int channel = static_cast<int>(threadIdx.x) % 32 * 4;
  const int64_t column = item % params.heads * kKdaDim + channel;
  const float4 x = LoadFour(params.x + row * params.x_stride + column);
  float squares = AddSquares(x, 0.0F);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, mask));
  }
  const float factor = NormFactor(squares, kKdaDim, params.epsilon);
  const float4 g = LoadFour(params.gates + row * params.gates_stride + column);
  const float4 gates = make_float4(Sigmoid(g.x), Sigmoid(g.y), Sigmoid(g.z), Sigmoid(g.w));
  StoreFour(static_cast<Output*>(params.y) + row * params.y_stride + column,
            LoadFour(params.norm + channel) * (x * factor) * gates);
}

__global__ void __launch_bounds__(kGateThreads)
    GateHeadsKernel(const __grid_constant__ GateHeadsParams params) {
  LaunchDependents();
  WaitForPriorGrid();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  const int64_t fours = int64_t{params.heads} * params.width / 4;  // of a row
  const int64_t row = item / fours;
  if (row >= params.num_rows) return;
  const int64_t column = item % fours * 4;
  auto* const x = static_cast<__nv_bfloat16*>(params.x) + row * params.x_stride + column;
  StoreFour(x,
            LoadFour(x) * Sigmoid(params.gates[row * params.gates_stride + column / params.width]));
}

void CheckStride(const char* what, int64_t stride, int64_t least, int64_t multiple) {
  if (stride < least || stride % multiple != 0) {
    RefuseArgument(what, " is ", stride, ", it must be a multiple of ", multiple,
                   " that is at least ", least);
  }
}

void CheckRows(const char* what, int rows, int heads) {
  if (rows < 0 || heads < 1 || heads > 65535) {
    RefuseArgument(what, ": ", rows, " rows of ", heads,
                   " heads: rows must not be negative, heads 1 to 65535");
  }
}

}  // namespace

cudaError_t KdaRows(const KdaRowsParams& params, cudaStream_t stream) {
  const int rows = params.step.num_rows;
  CheckRows("KdaRows", rows, params.heads);
  const int64_t width = int64_t{params.heads} * kKdaDim;
  CheckStride("KdaRows: stride", params.stride, width, 1);
  CheckStride("KdaRows: decay_stride", params.decay_stride, width, 1);
  CheckStride("KdaRows: page_bytes", params.memory.page_bytes,
              int64_t{kKdaRowNumbers} * int64_t{sizeof(float)}, 16);
  if (rows == 0) return cudaSuccess;
  const int together = rows >= kManyRows ? kRowsTogether : 1;
  return LaunchDependent(KdaRowsKernel,
                         dim3(static_cast<unsigned>((rows + together - 1) / together),
                              static_cast<unsigned>(params.heads)),
                         dim3(kThreads), 0, stream, params, together);
}

cudaError_t KdaNormGate(const KdaNormGateParams& params, cudaStream_t stream) {
  CheckRows("KdaNormGate", params.num_rows, params.heads);
  const int64_t width = int64_t{params.heads} * kKdaDim;
  CheckStride("KdaNormGate: x_stride", params.x_stride, width, 4);
  CheckStride("KdaNormGate: gates_stride", params.gates_stride, width, 4);
  CheckStride("KdaNormGate: y_stride", params.y_stride, width, 4);
  if (params.y_dtype != DType::kF32 && params.y_dtype != DType::kBF16) {
    RefuseArgument("KdaNormGate: rows of ", DTypeName(params.y_dtype),
                   ": they must be float32 or bfloat16");
  }
  if (params.num_rows == 0) return cudaSuccess;
  constexpr int64_t kHeadsOfBlock = kNormThreads / 32;
  const int64_t heads = int64_t{params.num_rows} * params.heads;
  const auto kernel =
      params.y_dtype == DType::kF32 ? NormGateKernel<float> : NormGateKernel<__nv_bfloat16>;
  return LaunchDependent(kernel,
                         dim3(static_cast<unsigned>((heads + kHeadsOfBlock - 1) / kHeadsOfBlock)),
                         dim3(kNormThreads), 0, stream, params);
}

cudaError_t GateHeads(const GateHeadsParams& params, cudaStream_t stream) {
  CheckRows("GateHeads", params.num_rows, params.heads);
  if (params.width < 4 || params.width % 4 != 0) {
    RefuseArgument("GateHeads: width is ", params.width, ", it must be a multiple of 4");
  }
  CheckStride("GateHeads: gates_stride", params.gates_stride, params.heads, 1);
  CheckStride("GateHeads: x_stride", params.x_stride, int64_t{params.heads} * params.width, 4);
  if (params.num_rows == 0) return cudaSuccess;
  const int64_t fours = int64_t{params.num_rows} * params.heads * params.width / 4;
  return LaunchDependent(GateHeadsKernel,
                         dim3(static_cast<unsigned>((fours + kGateThreads - 1) / kGateThreads)),
                         dim3(kGateThreads), 0, stream, params);
}

}  // namespace outrider::cuda
