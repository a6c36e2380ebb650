// An indexer's choice: of the entries that a row sees, those with the largest scores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "outrider/kernels/cuda/sparse/sparse_rows.h"

namespace outrider::cuda {

inline constexpr int kMaxChosen = 4096;

struct ChooseEntriesParams {
  int first_row = 0;  // rows first_row .. first_row + num_rows - 1 of the step
  int num_rows = 0;
  SparseRows rows = {};
  int top_k = 0;        // that of PlanSparseRows, 1 .. kMaxChosen
  int max_visible = 0;  // upper bound of rows.visible
  // float32 [num_rows, scores_stride], 16-byte aligned, the stride a multiple of 4 and at least
  // what a row sees: row r of the step at scores + (r - first_row) * scores_stride. Of rows that
  // see no more than top_k nothing is read.
  const float* scores = nullptr;
  int64_t scores_stride = 0;
  int32_t* lists = nullptr;  // [rows of the step, lists_stride]
  int64_t lists_stride = 0;  // at least top_k
};

/// lists[r, i], i < min(visible, top_k): the entries j with the largest scores, rising; the lower j
/// of equal scores first (-0 equals 0; NaN is smaller than all); all entries where a row sees no
/// more than top_k. Decided by counts of integers, so it is the same in every run, and the choice
/// that a processor makes from equal scores. Throws Error for parameters outside the ranges above;
/// otherwise returns what the launch returned.
cudaError_t ChooseEntries(const ChooseEntriesParams& params, cudaStream_t stream);

}  // namespace outrider::cuda
