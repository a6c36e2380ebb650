// What happens to weights on the device while they are loaded, beside PackWeight (matmul.h): random
// values in their place, and W_UK and W_UV of every head out of kv_b_proj.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/checkpoint/dummy_values.h"

namespace outrider::cuda {

/// Writes rows [first_row, first_row + rows), columns [first_col, first_col + cols) of a random
/// tensor with rows of `tensor_cols` to out, bf16 [rows, cols]. first_col, cols and tensor_cols are
/// multiples of 4, `out` is 8-byte aligned.
struct DummyPart {
  DummyStream stream;
  int64_t tensor_cols = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

/// Throws Error for columns that are no multiples of 4; otherwise returns what the launch returned.
cudaError_t FillDummyPart(const DummyPart& part, void* out, cudaStream_t stream);

/// Writes that part as 4-bit codes of the values divided by `scale`, a power of two with which
/// they fit, rounded to nearest even: two to a byte, the even column in the lower half, [rows,
/// cols / 2]. `integers`: from -8 to 7, with 8 added; else e2m1. first_col and cols are multiples
/// of 8, `out` is 4-byte aligned. Throws Error for other columns; otherwise returns what the launch
/// returned.
cudaError_t FillDummyCodes(const DummyPart& part, float scale, bool integers, void* out,
                           cudaStream_t stream);

/// Splits kv_b_proj, bf16 [heads * (nope + value), latent], by head into W_UK^T [heads, latent,
/// nope] and W_UV [heads, value, latent].
struct KvUpSplit {
  int heads = 0;
  int nope = 0;
  int value = 0;
  int latent = 0;
  const void* kv_up = nullptr;
  void* key_up_t = nullptr;
  void* value_up = nullptr;
};

cudaError_t SplitKvUp(const KvUpSplit& split, cudaStream_t stream);

}  // namespace outrider::cuda
