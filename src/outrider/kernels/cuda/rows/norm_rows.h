// The residual stream of a step between two products, in one launch: what a layer's MLP gave is
// added to it (or, at the start, the tokens' embeddings begin it), and the next norm is taken.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/base/dtype.h"

namespace outrider::cuda {

/// For each row r below the true number of rows, in this order, each part where it is asked for:
///   x[r] = embedding[tokens[r]], or embedding[r] without tokens
///   x[r] += sum over j in order of term_weights[r * num_terms + j] * terms[r * num_terms + j],
///           then of last_term[r]
///   out[r] = norm_weight * (x[r] / sqrt(mean(x[r]^2) + epsilon)), rounded to bf16.
/// All sums are float32. A row's bits depend on that row alone.
struct NormRowsParams {
  int num_rows = 0;                    // upper bound, and the true number unless:
  const int32_t* true_rows = nullptr;  // optional [1] on the device: rows from it on are left alone
  int hidden = 0;                      // a multiple of 4 in 4 .. 8192
  // [num_rows, hidden]; 16-byte aligned, like all below. With embedding it may be null: then
  // nothing but the norm is written.
  float* x = nullptr;
  int64_t x_stride = 0;  // elements, a multiple of 4 and at least hidden; 0: hidden
  // Optional: bf16 rows of `hidden`. With tokens [vocab_size, hidden], and token ids [num_rows] in
  // [0, vocab_size): a token outside is a bug and stops the kernel with an error. Without tokens
  // [num_rows, hidden]: rows that are bf16 instead of float32.
  const void* embedding = nullptr;
  int64_t embedding_stride = 0;  // elements, a multiple of 4 and at least hidden; 0: hidden
  const int32_t* tokens = nullptr;
  int vocab_size = 0;
  // Optional [num_rows], with tokens: a row whose entry here is 0 begins with zeros instead.
  const int32_t* zero_at = nullptr;
  // Optional: [num_rows, num_terms, hidden], float32 or bf16.
  const void* terms = nullptr;
  DType terms_dtype = DType::kBF16;
  int num_terms = 0;
  const float* term_weights = nullptr;  // [num_rows, num_terms]; null: all 1
  const float* last_term = nullptr;     // optional, with terms: [num_rows, hidden]
  // Optional: float32 [hidden].
  const float* norm_weight = nullptr;
  float epsilon = 1e-6F;
  void* out = nullptr;     // bf16 [num_rows, hidden]
  int64_t out_stride = 0;  // elements, a multiple of 4 and at least hidden; 0: hidden
  // Optional [num_rows], with norm_weight and without embedding or terms: row r of `out` is the
  // norm of x[x_rows[r]] (the rows of a step whose logits are wanted).
  const int32_t* x_rows = nullptr;
};

/// Reads norm_weight before the kernel before it has ended: the host waits for the stream after it
/// is written. Throws Error for parameters outside these ranges; otherwise returns what the launch
/// returned.
cudaError_t NormRows(const NormRowsParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
