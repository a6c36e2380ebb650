// Small device operations on the rows of an MLA decode step: writing the latent cache, merging two
// attention results by log-sum-exp, gathering rows. One warp per row with a fixed order of
// additions, so a row's bits do not depend on the other rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/mla_decode.h"

namespace outrider::cuda {

struct LatentWriteParams {
  int num_rows = 0;
  const void* kv = nullptr;  // bf16 [num_rows, 576]: latent 512, rotary key 64; 16-byte aligned
  const float* weight = nullptr;  // [512], of the RMS norm of the latent
  float epsilon = 1e-6f;
  const float* cos = nullptr;  // [num_rows, 32], magnitude included
  const float* sin = nullptr;  // [num_rows, 32]
  bool interleaved = true;     // rotated pairs (2i, 2i + 1); false: (i, i + 32)
  // int64 [num_rows]: block * page size + offset; negative: the row writes nothing
  const int64_t* slot_mapping = nullptr;
  void* cache = nullptr;  // [slots, 576]
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float cache_scale = 1.0f;  // e4m3 only: stores value / cache_scale, saturated to +-448
};

/// Normalises each row's latent (weight * x / sqrt(mean(x^2) + epsilon)), rotates its key and
/// writes both to the row's cache slot, rounded once.
cudaError_t WriteLatentRows(const LatentWriteParams& params, cudaStream_t stream);

/// output = (e^lse_a * a + e^lse_b * b) / (e^lse_a + e^lse_b) per row of bf16 [num_rows, width];
/// lse = ln(e^lse_a + e^lse_b). A side with lse -inf leaves the other side's bits alone. `width` is
/// a multiple of 8; `output` and `lse` may be `a` and `lse_a`.
cudaError_t MergeAttentionRows(const void* a, const float* lse_a, const void* b, const float* lse_b,
                               int num_rows, int width, void* output, float* lse,
                               cudaStream_t stream);

/// output[i] = input[rows[i]] for bf16 rows of `width` values, a multiple of 8. Negative entries of
/// `rows` leave their output row alone.
cudaError_t GatherRows(const void* input, const int* rows, int num_rows, int width, void* output,
                       cudaStream_t stream);

}  // namespace outrider::cuda
