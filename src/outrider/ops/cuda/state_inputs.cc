#include "outrider/ops/cuda/state_inputs.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cuda {

// A request that generates has few rows, so that its steps may be recorded.
static_assert(kMostStateDrafts < kKdaFewRows);

void StateInputs::Assign(const BatchLayout& layout) {
  rows_ = layout.requests();
  requests_.clear();
  checkpoint_tokens_.clear();
  checkpoint_pages_.clear();
  restores_ = false;
  step_ = {};
  const auto keeps_state = [](const RequestRows& request) {
    return request.state.tables != nullptr && !request.state.tables->state.empty();
  };
  if (rows_.empty() || !keeps_state(rows_.front())) {
    rows_ = {};
    return;
  }
  step_.state_stride = static_cast<int>(rows_.front().state.tables->state.size());
  step_.row_stride = static_cast<int>(rows_.front().state.tables->rows.size());
  for (const RequestRows& request : rows_) {
    const StateWork& work = request.state;
    OUTRIDER_CHECK(keeps_state(request) && request.num_drafts <= kMostStateDrafts);
    OUTRIDER_CHECK(std::cmp_equal(work.tables->state.size(), step_.state_stride) &&
                   std::cmp_equal(work.tables->rows.size(), step_.row_stride));
    OUTRIDER_CHECK(work.tokens % kStateBlock == 0 && work.tokens <= request.context_length &&
                   request.context_length - work.tokens < kKeptStateRows);
    OUTRIDER_CHECK(!work.restores ||
                   (work.tokens == request.context_length &&
                    std::cmp_equal(work.tables->restored.size(), step_.state_stride)));
    restores_ = restores_ || work.restores;
    step_.has_many_rows = step_.has_many_rows || request.query_length > kKdaFewRows;
    KdaRequest& made = requests_.emplace_back();
    made = {.first_row = request.first_row,
            .num_rows = request.query_length,
            .context = request.context_length,
            .num_drafts = request.num_drafts,
            .state_tokens = work.tokens,
            .restores = work.restores ? 1 : 0};
    AddCheckpoints(request, made);
  }
}

void StateInputs::AddCheckpoints(const RequestRows& request, KdaRequest& made) {
  made.first_checkpoint = static_cast<int32_t>(checkpoint_tokens_.size());
  const int32_t known = request.context_length + request.query_length - request.num_drafts;
  for (const StateCheckpoint& checkpoint : request.state.tables->checkpoints) {
    if (checkpoint.tokens <= request.context_length || checkpoint.tokens > known) continue;
    OUTRIDER_CHECK(std::cmp_equal(checkpoint.pages.size(), step_.state_stride));
    checkpoint_tokens_.push_back(checkpoint.tokens);
    checkpoint_pages_.insert(checkpoint_pages_.end(), checkpoint.pages.begin(),
                             checkpoint.pages.end());
  }
  made.end_checkpoint = static_cast<int32_t>(checkpoint_tokens_.size());
}

size_t StateInputs::AddPages(StagedArrays& arrays, const std::vector<int32_t> StateTables::* pages,
                             int stride, size_t count) {
  numbers_.clear();
  for (const RequestRows& request : rows_) {
    const std::vector<int32_t>& own = request.state.tables->*pages;
    numbers_.insert(numbers_.end(), own.begin(), own.end());
    // Of requests that restore no state.
    numbers_.resize(numbers_.size() + static_cast<size_t>(stride) - own.size());
  }
  return arrays.Add(std::span<const int32_t>(numbers_), count * static_cast<size_t>(stride));
}

void StateInputs::Add(StagedArrays& arrays, int32_t num_rows, bool rounded) {
  if (rows_.empty()) return;
  OUTRIDER_CHECK(!rounded || IsPlain());
  const auto rows = static_cast<size_t>(num_rows);
  const size_t count = rounded ? rows : requests_.size();
  step_.num_requests = static_cast<int>(count);
  step_.num_rows = num_rows;
  numbers_.assign(rows, -1);
  for (size_t i = 0; i < requests_.size(); ++i) {
    std::fill_n(numbers_.begin() + requests_[i].first_row, requests_[i].num_rows,
                static_cast<int32_t>(i));
  }
  at_.requests = arrays.Add(std::span<const KdaRequest>(requests_), count);
  at_.row_requests = arrays.Add(numbers_);
  at_.state_pages = AddPages(arrays, &StateTables::state, step_.state_stride, count);
  at_.row_pages = AddPages(arrays, &StateTables::rows, step_.row_stride, count);
  if (restores_) {
    at_.restored_pages = AddPages(arrays, &StateTables::restored, step_.state_stride, count);
  }
  at_.checkpoint_tokens = arrays.Add(checkpoint_tokens_);
  at_.checkpoint_pages = arrays.Add(checkpoint_pages_);
}

void StateInputs::Place(const StagedArrays& arrays) {
  if (rows_.empty()) return;
  step_.requests = arrays.At<KdaRequest>(at_.requests);
  step_.row_requests = arrays.At<int32_t>(at_.row_requests);
  step_.state_pages = arrays.At<int32_t>(at_.state_pages);
  step_.row_pages = arrays.At<int32_t>(at_.row_pages);
  step_.restored_pages = restores_ ? arrays.At<int32_t>(at_.restored_pages) : nullptr;
  step_.checkpoint_tokens = arrays.At<int32_t>(at_.checkpoint_tokens);
  step_.checkpoint_pages = arrays.At<int32_t>(at_.checkpoint_pages);
}

}  // namespace outrider::cuda
