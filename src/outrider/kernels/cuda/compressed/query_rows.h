// What happens to rows between the products of DeepSeek-V4's queries and keys and its attention:
// norms, the rotary embedding of the last 64 numbers, the write of the window's rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

struct WindowRowsParams {
  int num_rows = 0;
  DType input_dtype = DType::kF32;  // of kv and q: kBF16 or kF32
  const void* kv = nullptr;         // [num_rows, kv_stride], of 512 numbers; 16-byte aligned
  int64_t kv_stride = 0;            // elements, a multiple of 4 and at least 512
  const float* weight = nullptr;    // [512]
  float epsilon = 1e-6F;
  const float* cos = nullptr;  // [num_rows, 32], magnitude included
  const float* sin = nullptr;
  // int64 [num_rows]: block * block_size + place in the block; negative: the row writes nothing
  const int64_t* slots = nullptr;
  void* cache = nullptr;  // bf16 or, with `codes`, e4m3 [512], of block 0; 16-byte aligned
  bool codes = false;
  // bf16: all but the rotated numbers are rounded first, as is published (published_rounding.cuh).
  bool rounds = false;
  int64_t block_stride = 0;  // bytes, a multiple of 16
  int block_size = 0;        // rows of a block, which follow each other
  // Optional: the queries' latent, which is normalised in the same launch.
  const void* q = nullptr;          // [num_rows, q_stride]; 16-byte aligned
  int64_t q_stride = 0;             // elements, a multiple of 4
  int q_columns = 0;                // a multiple of 4 in 4 .. 2048
  const float* q_weight = nullptr;  // [q_columns]
  void* q_out = nullptr;            // bf16 [num_rows, q_out_stride]
  int64_t q_out_stride = 0;         // elements, a multiple of 4
};

/// Row of the window = rotate(weight * kv / rms(kv)), pairs (2i, 2i + 1) of the last 64, rounded
/// once; q_out = q_weight * q / rms(q). A row's bits depend on that row alone. Throws Error for
/// parameters outside the ranges above; otherwise returns what the launch returned.
cudaError_t WriteWindowRows(const WindowRowsParams& params, cudaStream_t stream);

struct QueryHeadsParams {
  int num_rows = 0;
  int heads = 0;
  int index_heads = 0;  // of an indexer, of 128 numbers, a multiple of 4
  // bf16 [num_rows, from_stride]: heads * 512 numbers, then index_heads * 128. Like the results
  // 16-byte aligned, with strides in elements, multiples of 8.
  const void* from = nullptr;
  int64_t from_stride = 0;
  float epsilon = 1e-6F;
  const float* cos = nullptr;  // [num_rows, 32], magnitude included
  const float* sin = nullptr;
  void* q = nullptr;  // bf16 [num_rows, q_stride], of heads * 512 numbers; it may be `from`
  int64_t q_stride = 0;
  void* index_q = nullptr;  // with index heads: bf16 [num_rows, index_stride]
  int64_t index_stride = 0;
};

/// Every head = rotate(from / rms(from)), rounded once; those of an indexer = rotate(from), of
/// their last 64 numbers too. Same errors.
cudaError_t FinishQueryHeads(const QueryHeadsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
