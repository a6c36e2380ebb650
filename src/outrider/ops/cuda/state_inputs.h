// What the rows of a step do to running states, as arrays in the device's memory: a part of
// CudaStepInputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/kernels/cuda/kda/kda_step.h"
#include "outrider/ops/cuda/staged_arrays.h"

namespace outrider::cuda {

class StateInputs {
 public:
  /// Takes the states of a layout's requests; none where the network keeps none. The layout must
  /// stay as it is until Add.
  void Assign(const BatchLayout& layout);

  /// Whether every request has few rows, starts from its own state and leaves no checkpoint: then
  /// the arrays and launches of all steps of as many rows are alike.
  bool IsPlain() const { return !step_.has_many_rows && !restores_ && checkpoint_tokens_.empty(); }

  /// Adds the arrays. With `rounded` they have room for as many requests as there are rows, those
  /// that were added included.
  void Add(StagedArrays& arrays, int32_t num_rows, bool rounded);
  /// They are copied.
  void Place(const StagedArrays& arrays);

  /// Without requests where there are no states.
  const KdaStep& step() const { return step_; }

 private:
  void AddCheckpoints(const RequestRows& request, KdaRequest& made);
  /// A row of pages of each request.
  size_t AddPages(StagedArrays& arrays, const std::vector<int32_t> StateTables::* pages, int stride,
                  size_t count);

  std::span<const RequestRows> rows_;
  std::vector<KdaRequest> requests_;
  std::vector<int32_t> checkpoint_tokens_;
  std::vector<int32_t> checkpoint_pages_;
  bool restores_ = false;
  KdaStep step_;
  struct Places {
    size_t requests;
    size_t row_requests;
    size_t state_pages;
    size_t row_pages;
    size_t restored_pages;
    size_t checkpoint_tokens;
    size_t checkpoint_pages;
  };
  Places at_ = {};
  std::vector<int32_t> numbers_;  // kept to reuse memory
};

}  // namespace outrider::cuda
