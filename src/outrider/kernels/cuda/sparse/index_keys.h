// What happens to an indexer's keys between their product and the scores: layer norm with a bias,
// the rotary embedding of the first 64 values, the write to their cache; and to its queries, where
// keys are codes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct IndexKeysParams {
  int num_rows = 0;
  const float* x = nullptr;       // [num_rows, x_stride], of 128 values; 16-byte aligned
  int64_t x_stride = 0;           // elements, a multiple of 4 and at least 128
  const float* weight = nullptr;  // [128], 16-byte aligned
  const float* bias = nullptr;    // [128], 16-byte aligned
  float epsilon = 1e-6F;
  // float32 [num_rows, 32], magnitude included; 16-byte aligned
  const float* cos = nullptr;
  const float* sin = nullptr;
  bool interleaved = false;  // rotated pairs (2i, 2i + 1); else (i, i + 32)
  // int64 [num_rows]: block * block_size + place in the block; negative: the row writes nothing
  const int64_t* slots = nullptr;
  // Of block 0; 16-byte aligned. bf16 [block_size, 128], or, with `codes`, e4m3 [block_size, 128],
  // then their scales, float32 [block_size].
  void* cache = nullptr;
  bool codes = false;
  int64_t block_stride = 0;  // bytes, a multiple of 16
  int block_size = 0;        // keys of a block, with codes a multiple of 4
};

/// cache entry = rotate(weight * ((x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)) + bias),
/// rounded once, for every row with a slot; sums in float32. With `codes` it goes through a
/// Hadamard transform before, is divided by the least power of two with which no number is above
/// 448, and that is its scale; the largest number counts as 1e-4 at least. A row's bits depend on
/// that row alone. Throws Error for parameters outside the ranges above; otherwise returns what the
/// launch returned.
cudaError_t WriteIndexKeys(const IndexKeysParams& params, cudaStream_t stream);

struct IndexQueriesParams {
  int num_rows = 0;
  int heads = 0;
  const void* q = nullptr;         // bf16 [num_rows, heads, 128], 16-byte aligned
  const float* weights = nullptr;  // float32 [num_rows, weights_stride]
  int64_t weights_stride = 0;      // at least `heads`
  void* codes = nullptr;           // e4m3 [num_rows, heads, 128], 16-byte aligned
  float* scaled = nullptr;         // float32 [num_rows, heads]: weights times the scales of heads
  // `codes` are bf16: the numbers that e2m1 codes in groups of 32 with a power of two each stand
  // for, as DeepSeek-V4 publishes it; there are no weights.
  bool fp4_numbers = false;
};

/// Rounds an indexer's queries as WriteIndexKeys does its keys with `codes`. Same errors.
cudaError_t RoundIndexQueries(const IndexQueriesParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
