// Rows: a block per head and run of rows, a channel per thread. Norms: a warp per head. Gates: four
// numbers per thread.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"
#include "outrider/kernels/cuda/host/refused_argument.h"
#include "outrider/kernels/cuda/kda/kda_finish_row.cuh"
#include "outrider/kernels/cuda/kda/kda_rows.h"
#include "outrider/kernels/cuda/rows/row_values.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kKdaDim;
constexpr int kNormThreads = 256;
constexpr int kGateThreads = 256;
// From this number of rows on, a block takes kRowsTogether of them and reads their taps once.
constexpr int kManyRows = 1024;
constexpr int kRowsTogether = 4;

__global__ void __launch_bounds__(kThreads)
    KdaRowsKernel(const __grid_constant__ KdaRowsParams params, int rows_together) {
  __shared__ KdaLengths shared;
  LaunchDependents();
  const KdaStep& step = params.step;
  const int head = static_cast<int>(blockIdx.y);
  const int column = head * kKdaDim + static_cast<int>(threadIdx.x);
  const KdaChannel channel = LoadChannel(params, head);
  WaitForPriorGrid();
  const int first = static_cast<int>(blockIdx.x) * rows_together;
  const int end = min(first + rows_together, step.num_rows);
  for (int row = first; row < end; ++row) {
    const int number = step.row_requests[row];
    if (number < 0) continue;  // all threads alike
    const KdaRequest request = step.requests[number];
    if (request.num_rows <= kKdaFewRows) continue;
    const KdaRowSource source = SourceOf(params, request, number, head);
    const int position = request.context + (row - request.first_row);
    KdaWindow window;
    window.Begin(source, position);
    window.Take(source, position);
    float* const decay = params.decay + row * params.decay_stride + column;
    *decay = DecayFactor(params, *decay, channel);
    const KdaFinishedRow finished = FinishRow(window, channel, shared);
    const int64_t at = int64_t{row} * params.heads * kKdaDim + column;
    params.q_out[at] = finished.q;
    params.k_out[at] = finished.k;
    params.v_out[at] = finished.v;
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
  if (!params.step.has_many_rows) return cudaSuccess;
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
