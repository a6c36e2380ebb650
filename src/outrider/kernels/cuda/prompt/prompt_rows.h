// Rows of a prompt before its attention: what is read back from the latent cache, keys of every
// head from the product with W_UK and W_UV, where prompts begin, and the rotation of queries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/rows/step_rows.h"

namespace outrider::cuda {

/// Reads cache entries back: of every prompt the first ones, one prompt after the other.
struct LatentGatherParams {
  int num_prompts = 0;
  int num_rows = 0;                        // of all prompts: key_start_loc[num_prompts]
  const int32_t* key_start_loc = nullptr;  // [num_prompts + 1] on the device, from 0
  const int32_t* block_tables = nullptr;   // [num_prompts, block_table_stride] on the device
  int block_table_stride = 0;
  int page_size = 64;
  int64_t page_stride = 0;      // bytes, a multiple of 16; 0: a page's
  const void* cache = nullptr;  // page p: page_size entries of 576 from byte p * page_stride on
  MlaCacheType cache_type = MlaCacheType::kBf16;
  float cache_scale = 1.0F;  // e4m3 only: value = cache_scale * e4m3, rounded to bf16
  void* latent = nullptr;    // bf16 [num_rows, 512]
  void* rope = nullptr;      // bf16 [num_rows, 64]
};

/// Throws Error for sizes that are not positive; otherwise returns what the launch returned.
cudaError_t GatherLatentRows(const LatentGatherParams& params, cudaStream_t stream);

/// The keys that PromptAttention takes: k[t, h] = [kv[t, h, 0 .. nope - 1]; rope[t]]. Values stay
/// in kv, [num_rows, heads, nope + value]. Rows num_rows .. padded_rows - 1 of k and of kv become
/// zero.
struct PromptKeyParams {
  int num_rows = 0;
  int padded_rows = 0;  // num_rows or more
  int heads = 0;
  int nope = 0;  // multiples of 8
  int value = 0;
  void* kv = nullptr;          // bf16 [padded_rows, heads, nope + value]
  const void* rope = nullptr;  // bf16 [num_rows, 64]
  void* k = nullptr;           // bf16 [padded_rows, heads, nope + 64]
};

/// Throws Error for sizes outside the ranges above; otherwise returns what the launch returned.
cudaError_t MakePromptKeys(const PromptKeyParams& params, cudaStream_t stream);

/// What cuDNN wants to know of prompts whose rows follow each other in memory.
struct PromptOffsetParams {
  int num_prompts = 0;
  int plan_prompts = 0;                      // num_prompts or more; the others get no rows
  const int32_t* query_start_loc = nullptr;  // [num_prompts + 1] on the device, from 0
  const int32_t* key_start_loc = nullptr;    // [num_prompts + 1] on the device, from 0
  // Elements from a row to the next.
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t out_stride = 0;
  int32_t* lengths = nullptr;  // [2, plan_prompts]: queries, keys
  int64_t* offsets = nullptr;  // [4, plan_prompts + 1]: where rows of q, k, v and out begin
};

/// Throws Error for counts that are not positive; otherwise returns what the launch returned.
cudaError_t MakePromptOffsets(const PromptOffsetParams& params, cudaStream_t stream);

/// Rotates in place the 64 values from column `offset` on of every head's `width`: bf16
/// [num_rows, heads, width], rows `row_stride` elements apart.
struct RotationParams {
  int num_rows = 0;
  int heads = 0;
  int width = 0;
  int offset = 0;          // even; offset + 64 <= width
  int64_t row_stride = 0;  // at least heads * width; 0: that
  void* x = nullptr;
  RotaryTable rotary;
};

/// Throws Error for sizes outside the ranges above; otherwise returns what the launch returned.
cudaError_t RotateRows(const RotationParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
