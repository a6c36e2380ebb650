#include "outrider/batch/batch_layout.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

namespace {

size_t QueryLength(const RequestWork& work) {
  return work.tokens.size() + work.draft_tokens.size();
}

}  // namespace

void BatchLayout::Assign(std::span<const RequestWork> work) {
  requests_.clear();
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  query_start_loc_.assign(1, 0);
  seq_lens_.clear();
  logits_rows_.clear();

  order_.clear();
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].phase == Phase::kDecode) order_.push_back(static_cast<int32_t>(i));
  }
  num_decode_requests_ = static_cast<int32_t>(order_.size());
  // Sorting by (length, index) is stable and, unlike std::stable_sort, needs no memory.
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const size_t length_a = QueryLength(work[static_cast<size_t>(a)]);
    const size_t length_b = QueryLength(work[static_cast<size_t>(b)]);
    return length_a != length_b ? length_a < length_b : a < b;
  });
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].phase != Phase::kDecode) order_.push_back(static_cast<int32_t>(i));
  }
  for (const int32_t i : order_) Append(work[static_cast<size_t>(i)], i);
}

void BatchLayout::Append(const RequestWork& work, int32_t work_index) {
  OUTRIDER_CHECK(!work.tokens.empty());
  OUTRIDER_CHECK(work.draft_tokens.empty() || (work.phase == Phase::kDecode && work.samples));
  OUTRIDER_CHECK(!work.prompt_logits || work.phase != Phase::kDecode);
  OUTRIDER_CHECK(work.phase != Phase::kPromptChunk || !work.samples);
  const auto query_length = static_cast<int32_t>(QueryLength(work));
  const auto num_drafts = static_cast<int32_t>(work.draft_tokens.size());
  const int32_t sequence_length = work.context_length + query_length;
  OUTRIDER_CHECK(static_cast<int64_t>(work.block_table.size()) * block_size_ >= sequence_length);

  RequestRows rows;
  rows.slot = work.slot;
  rows.phase = work.phase;
  rows.first_row = num_rows();
  rows.query_length = query_length;
  rows.context_length = work.context_length;
  rows.num_drafts = num_drafts;
  rows.first_logits_row = num_logits_rows();
  rows.num_logits_rows = work.samples ? 1 + num_drafts : 0;
  if (work.prompt_logits) rows.num_prompt_logits_rows = query_length - rows.num_logits_rows;
  rows.work_index = work_index;
  rows.block_table = work.block_table.data();

  token_ids_.insert(token_ids_.end(), work.tokens.begin(), work.tokens.end());
  token_ids_.insert(token_ids_.end(), work.draft_tokens.begin(), work.draft_tokens.end());
  const auto first_row = static_cast<size_t>(rows.first_row);
  positions_.resize(first_row + static_cast<size_t>(query_length));
  slot_mapping_.resize(positions_.size());
  int32_t* positions = positions_.data() + first_row;
  int64_t* slots = slot_mapping_.data() + first_row;
  for (int32_t position = work.context_length; position < sequence_length;) {
    const int32_t block = position / block_size_;
    const int32_t end = std::min(sequence_length, (block + 1) * block_size_);
    int64_t slot = int64_t{work.block_table[static_cast<size_t>(block)]} * block_size_ +
                   (position - block * block_size_);
    for (; position < end; ++position) {
      *positions++ = position;
      *slots++ = slot++;
    }
  }
  for (int32_t i = 0; i < rows.num_logits_rows; ++i) {
    logits_rows_.push_back(rows.first_row + query_length - rows.num_logits_rows + i);
  }
  query_start_loc_.push_back(num_rows());
  seq_lens_.push_back(sequence_length);
  requests_.push_back(rows);
}

}  // namespace outrider
