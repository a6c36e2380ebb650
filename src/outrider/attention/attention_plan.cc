#include "outrider/attention/attention_plan.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

AttentionPlan::AttentionPlan(AttentionBackend backend, int32_t threshold, RowPaths paths,
                             const RankPlace& cache_place)
    : backend_(backend), threshold_(threshold), paths_(paths), cache_place_(cache_place) {
  OUTRIDER_CHECK(threshold >= 1);
  OUTRIDER_CHECK(!paths.ForAll() || backend == AttentionBackend::kRagged);
}

void AttentionPlan::Assign(const BatchLayout& layout) {
  if (paths_.ForAll()) one_path_ = layout.requests();
  if (!paths_.ByRole()) return;
  const DecodeKernel kernel = DecodeKernelOf(backend_);
  std::span<const RequestRows> requests = layout.requests();
  // A ragged kernel is not held to 1 + k rows: it runs recomputed tokens in one go.
  const int32_t longest = kernel.lengths == QueryLengths::kRagged
                              ? kernel.longest_query
                              : std::min(threshold_, kernel.longest_query);
  if (KeepsExactness(backend_)) {
    runs_.clear();
    for (const RequestRows& request : requests) {
      if (request.phase == Phase::kDecode) {
        CutRuns(request, longest, runs_);
      } else {
        runs_.push_back(request);
      }
    }
    requests = runs_;
  }
  SplitDecodes(kernel, longest, requests, split_);
  query_length_ = split_.query_length;
  const auto select = [&](const std::vector<int32_t>& indices, std::vector<RequestRows>& to) {
    to.clear();
    for (const int32_t i : indices) to.push_back(requests[static_cast<size_t>(i)]);
  };
  select(split_.decode, decode_runs_);
  select(split_.left_over, left_over_);
  select(split_.prompts, prompts_);
  OUTRIDER_CHECK(left_over_.empty() || !KeepsExactness(backend_));

  num_decode_rows_ = 0;
  for (const RequestRows& run : decode_runs_) {
    // Requests come sorted by length, so those of one length stand together.
    OUTRIDER_CHECK(run.first_row == first_decode_row() + num_decode_rows_);
    num_decode_rows_ += run.query_length;
  }
}

int32_t AttentionPlan::first_decode_row() const {
  return decode_runs_.empty() ? 0 : decode_runs_.front().first_row;
}

}  // namespace outrider
