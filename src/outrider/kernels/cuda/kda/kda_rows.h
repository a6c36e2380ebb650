// What happens to rows before and behind the pass over the states (kda_attention.h): short
// convolutions, lengths, decays; norms and gates.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/base/dtype.h"
#include "outrider/kernels/cuda/kda/kda_step.h"

namespace outrider::cuda {

struct KdaRowsParams {
  KdaStep step;
  KdaMemory memory;
  int heads = 0;
  // Before the convolution: [num_rows, stride], of heads * 128 numbers.
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;  // elements, at least heads * 128
  // [heads * 128, 4], the last for the row itself; 16-byte aligned.
  const float* q_taps = nullptr;
  const float* k_taps = nullptr;
  const float* v_taps = nullptr;
  // [num_rows, decay_stride]: projected decays; of requests of many rows they become factors.
  float* decay = nullptr;
  int64_t decay_stride = 0;
  const float* decay_log = nullptr;   // A_log [heads]
  const float* decay_bias = nullptr;  // dt_bias [heads * 128]
  bool bounded = false;
  float decay_bound = 0;
  // Finished, of requests of many rows: [num_rows, heads * 128]; 16-byte aligned.
  float* q_out = nullptr;
  float* k_out = nullptr;
  float* v_out = nullptr;
};

/// Every head of every row of requests of many rows: convolutions over the rows of its request
/// (those before the step are kept rows, or the restored state's), silu; queries and keys of length
/// 1, queries times 128^-1/2; the factors exp(g) of the decays. Has the bits of
/// CpuOps::DeltaAttention, but for decays without a bound. Launches nothing where no request has
/// many rows. Throws Error for parameters outside the ranges above; otherwise returns what the
/// launch returned.
cudaError_t KdaRows(const KdaRowsParams& params, cudaStream_t stream);

struct KdaNormGateParams {
  int num_rows = 0;
  int heads = 0;
  const float* x = nullptr;     // [num_rows, x_stride], of heads * 128 numbers; 16-byte aligned
  int64_t x_stride = 0;         // elements, a multiple of 4
  const float* norm = nullptr;  // [128]; 16-byte aligned
  float epsilon = 0;
  const float* gates = nullptr;  // [num_rows, gates_stride]; 16-byte aligned
  int64_t gates_stride = 0;      // elements, a multiple of 4
  void* y = nullptr;             // [num_rows, y_stride]; 16-byte aligned; float32 may be x
  DType y_dtype = DType::kBF16;  // or kF32
  int64_t y_stride = 0;          // elements, a multiple of 4
};

/// y = norm * x / rms(x) * sigmoid(gates), head by head, rounded once. Same errors.
cudaError_t KdaNormGate(const KdaNormGateParams& params, cudaStream_t stream);

struct GateHeadsParams {
  int num_rows = 0;
  int heads = 0;
  int width = 0;                 // of a head, a multiple of 4
  const float* gates = nullptr;  // [num_rows, gates_stride], of heads numbers
  int64_t gates_stride = 0;
  void* x = nullptr;     // bf16 [num_rows, x_stride], of heads * width numbers; 8-byte aligned
  int64_t x_stride = 0;  // elements, a multiple of 4
};

/// Every head of x is multiplied by the sigmoid of its gate, in place. Same errors.
cudaError_t GateHeads(const GateHeadsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
