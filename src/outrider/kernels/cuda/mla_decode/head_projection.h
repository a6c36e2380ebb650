// A matrix of its own for every head: what turns queries into the latent space before MLA decode
// (absorption, W_UK) and its outputs into values after it (un-absorption, W_UV).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/rows/step_rows.h"

namespace outrider::cuda {

/// y[t, h, n] = sum_k x[t, h, k] * w[h, n, k], rounded once to bf16.
///
/// Absorption: x = q_nope, k 128, w = W_UK^T [heads, 512, 128], n 512, y = the first 512 of q's
/// 576; with `rotary`, x[t, h, k .. k + 63] are rotated into y[t, h, n .. n + 63] by the same
/// launch, the rest of q. Un-absorption: x = the decode output, k 512, w = W_UV [heads, 128, 512],
/// n 128.
///
/// Row invariance: a sum is one chain over k, or four chains over quarters of k, added in order,
/// where k is above 256: whatever num_tokens is. So a token's bits depend on its own x and w alone.
struct HeadProjectionParams {
  int num_tokens = 0;                  // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // optional [1] on the device: rows from it on are left alone
  int heads = 0;
  int k = 0;  // a multiple of 32 up to 256, or of 128 up to 1024
  int n = 0;  // a multiple of 32
  // bf16, 16-byte aligned; strides in elements, multiples of 8
  const void* x = nullptr;
  int64_t x_token_stride = 0;
  int64_t x_head_stride = 0;
  const void* w = nullptr;  // bf16 [heads, n, k], 16-byte aligned
  void* y = nullptr;        // bf16, 8-byte aligned; strides multiples of 4
  int64_t y_token_stride = 0;
  int64_t y_head_stride = 0;
  const RotaryTable* rotary = nullptr;  // optional
};

/// Reads w before the kernel before it has ended: the host waits for the stream after w is written.
/// Throws Error for sizes or strides outside the ranges above; otherwise returns what the launch
/// returned.
cudaError_t ProjectHeads(const HeadProjectionParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
