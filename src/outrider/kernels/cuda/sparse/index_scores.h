// Scores of an indexer's keys (DeepSeek-V3.2, GLM-5; DeepSeek-V4 with one key for several tokens).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/sparse/paged_entries.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"

namespace outrider::cuda {

struct IndexScoresParams {
  // Rows first_row .. first_row + num_rows - 1 of the step; first_row a multiple of the plan's
  // score_rows, num_rows too unless these are the step's last rows.
  int first_row = 0;
  int num_rows = 0;
  int step_rows = 0;  // of the step: what PlanSparseRows took as num_rows
  SparseRows rows = {};
  int heads = 0;  // that of PlanSparseRows: 8, 16, 32 or 64
  // bf16, or, with `codes`, e4m3 [step_rows, heads, 128], 16-byte aligned
  const void* q = nullptr;
  // float32 [step_rows, weights_stride], 16-byte aligned; the stride is a multiple of 4
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  // bf16 [128]; with `codes` e4m3 [128] and behind a page's codes their scales, float32 [page_size]
  PagedEntries keys = {};
  bool codes = false;
  // float32 [num_rows, scores_stride]: row r of the step at scores + (r - first_row) *
  // scores_stride
  float* scores = nullptr;
  int64_t scores_stride = 0;  // at least the entries that a row sees
};

/// For rows r that see more than the plan's top_k entries, and every entry j that they see:
///   scores[r, j] = scale_j * sum over heads h of weights[r, h] * max(q[r, h] . key_j, 0),
/// where scale_j is 1 without `codes`.
/// Rows that see fewer may be written or left alone. A product is one chain over the 128 dimensions
/// on the tensor cores, the sum over heads goes in one order: a score's bits depend on the row's
/// query and weights and on the key alone. Throws Error for parameters outside the ranges above;
/// otherwise returns what the launch returned.
cudaError_t ScoreIndexKeys(const IndexScoresParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
