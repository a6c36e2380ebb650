// What happens to the rows of grouped-query attention between the product that makes queries, keys
// and values and attention: every head's norm, the rotary embedding of its first values, the write
// to the cache. Heads are 128 wide.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

struct HeadRowsParams {
  int num_rows = 0;
  int heads = 0;  // of queries; 0: there are none
  int kv_heads = 0;
  // bf16 rows, 8-byte aligned, strides multiples of 4.
  void* q = nullptr;  // [num_rows, heads, 128], changed in place
  int64_t q_stride = 0;
  const void* k = nullptr;  // [num_rows, kv_heads, 128]
  int64_t k_stride = 0;
  const void* v = nullptr;  // [num_rows, kv_heads, 128]
  int64_t v_stride = 0;
  const float* q_norm = nullptr;  // optional [128]: without it queries are not normalised
  const float* k_norm = nullptr;  // optional [128]: nor are keys
  float epsilon = 1e-6F;
  // float32 [num_rows, rotary_dims / 2], magnitude included
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rotary_dims = 0;       // of a head, from the first on: a multiple of 8 up to 128
  bool interleaved = false;  // rotated pairs (2i, 2i + 1); else (i, i + rotary_dims / 2)
  // int64 [num_rows]: block * block_size + place in the block; negative: the row writes nothing
  const int64_t* slots = nullptr;
  void* cache = nullptr;             // as GqaParams::cache
  DType cache_dtype = DType::kBF16;  // or kF8E4M3: rounded to nearest, saturated to +-448
  int64_t block_stride = 0;          // bytes
  int block_size = 0;
};

/// q = rotate(q_norm * q / rms(q)) for every head; cache entry = rotate(k_norm * k / rms(k)), v. A
/// row's bits depend on that row alone. Throws Error for parameters outside the ranges above;
/// otherwise returns what the launch returned.
cudaError_t NormHeadRows(const HeadRowsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
