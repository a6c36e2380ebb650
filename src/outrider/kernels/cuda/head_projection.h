// A matrix of its own for every head: what turns queries into the latent space before MLA decode
// (absorption, W_UK) and its outputs into values after it (un-absorption, W_UV).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

/// y[t, h, n] = sum_k x[t, h, k] * w[h, n, k], rounded once to bf16.
///
/// Absorption: x = q_nope, k 128, w = W_UK^T [heads, 512, 128], n 512, y = the first 512 of q's
/// 576. Un-absorption: x = the decode output, k 512, w = W_UV [heads, 128, 512], n 128.
///
/// Row invariance: float32 sums over k in one fixed order whatever num_tokens is, so a token's bits
/// depend on its own x and w alone.
struct HeadProjectionParams {
  int num_tokens = 0;
  int heads = 0;
  int k = 0;  // a multiple of 32
  int n = 0;  // a multiple of 32
  // bf16, 16-byte aligned; strides in elements, multiples of 8
  const void* x = nullptr;
  int64_t x_token_stride = 0;
  int64_t x_head_stride = 0;
  const void* w = nullptr;  // bf16 [heads, n, k], 16-byte aligned
  void* y = nullptr;        // bf16, 4-byte aligned; strides even
  int64_t y_token_stride = 0;
  int64_t y_head_stride = 0;
};

/// Returns cudaErrorInvalidValue for sizes or strides outside the ranges above.
cudaError_t ProjectHeads(const HeadProjectionParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
