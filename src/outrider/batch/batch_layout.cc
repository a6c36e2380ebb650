#include "outrider/batch/batch_layout.h"

#include <algorithm>
#include <numeric>

#include "outrider/base/error.h"

namespace outrider {

namespace {

size_t QueryLength(const RequestWork& work) {
  return work.tokens.size() + work.draft_tokens.size();
}

}  // namespace

BatchLayout::BatchLayout(std::vector<CacheGroupSpec> groups)
    : groups_(std::move(groups)), slot_mapping_(groups_.size()) {}

void BatchLayout::Sort(std::span<const RequestWork> work) {
  order_.clear();
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].phase == Phase::kDecode) order_.emplace_back(QueryLength(work[i]), i);
  }
  // By (length, index): stable, and mostly done already. std::stable_sort would need memory.
  if (!std::is_sorted(order_.begin(), order_.end())) std::sort(order_.begin(), order_.end());
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].phase != Phase::kDecode) order_.emplace_back(QueryLength(work[i]), i);
  }
}

void BatchLayout::Assign(std::span<const RequestWork> work) {
  Sort(work);
  size_t num_rows = 0;
  size_t num_logits_rows = 0;
  for (const auto& [query_length, index] : order_) {
    num_rows += query_length;
    if (work[index].samples) num_logits_rows += 1 + work[index].draft_tokens.size();
  }
  tokens_.resize(num_rows);
  positions_.resize(num_rows);
  for (std::vector<int64_t>& slots : slot_mapping_) slots.resize(num_rows);
  logits_rows_.resize(num_logits_rows);
  requests_.resize(work.size());
  int32_t row = 0;
  int32_t logits_row = 0;
  for (size_t r = 0; r < order_.size(); ++r) {
    const size_t index = order_[r].second;
    RequestRows& rows = requests_[r];
    rows = PlaceRequest(work[index], row, logits_row);
    rows.work_index = static_cast<int32_t>(index);
    FillRows(work[index], rows);
    row += rows.query_length;
    logits_row += rows.num_logits_rows;
  }
}

RequestRows BatchLayout::PlaceRequest(const RequestWork& work, int32_t first_row,
                                      int32_t first_logits_row) const {
  OUTRIDER_CHECK(!work.tokens.empty());
  OUTRIDER_CHECK(work.draft_tokens.empty() || work.phase == Phase::kDecode);
  OUTRIDER_CHECK(!work.prompt_logits || work.phase != Phase::kDecode);
  OUTRIDER_CHECK(work.phase != Phase::kPromptChunk || !work.samples);
  const auto num_drafts = static_cast<int32_t>(work.draft_tokens.size());
  RequestRows rows;
  rows.slot = work.slot;
  rows.phase = work.phase;
  rows.first_row = first_row;
  rows.query_length = static_cast<int32_t>(QueryLength(work));
  rows.context_length = work.context_length;
  rows.num_drafts = num_drafts;
  rows.first_logits_row = first_logits_row;
  rows.num_logits_rows = work.samples ? 1 + num_drafts : 0;
  if (work.prompt_logits) rows.num_prompt_logits_rows = rows.query_length - rows.num_logits_rows;
  rows.block_tables = work.block_tables.data();
  rows.state = work.state;
  OUTRIDER_CHECK(work.block_tables.size() == groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    OUTRIDER_CHECK(static_cast<int32_t>(work.block_tables[g].size()) >=
                   groups_[g].BlocksBefore(rows.context_length + rows.query_length));
  }
  return rows;
}

void BatchLayout::FillRows(const RequestWork& work, const RequestRows& rows) {
  const auto first_row = static_cast<size_t>(rows.first_row);
  TokenRef* tokens = tokens_.data() + first_row;
  tokens = std::copy(work.tokens.begin(), work.tokens.end(), tokens);
  std::copy(work.draft_tokens.begin(), work.draft_tokens.end(), tokens);
  std::iota(positions_.begin() + rows.first_row,
            positions_.begin() + rows.first_row + rows.query_length, rows.context_length);
  for (size_t g = 0; g < groups_.size(); ++g) FillSlots(rows, g);
  std::iota(logits_rows_.begin() + rows.first_logits_row,
            logits_rows_.begin() + rows.first_logits_row + rows.num_logits_rows,
            rows.first_row + rows.query_length - rows.num_logits_rows);
}

void BatchLayout::FillSlots(const RequestRows& rows, size_t group) {
  const CacheGroupSpec& spec = groups_[group];
  const int32_t* blocks = rows.block_tables[group].data();
  int64_t* slots = slot_mapping_[group].data() + rows.first_row;
  const int32_t end = rows.context_length + rows.query_length;
  int32_t block = rows.context_length / spec.tokens_per_block;
  for (int32_t position = rows.context_length; position < end; ++block) {
    const int32_t block_begin = block * spec.tokens_per_block;
    const int32_t block_end = std::min(end, block_begin + spec.tokens_per_block);
    const int64_t first_slot = int64_t{blocks[block]} * spec.tokens_per_block;
    for (; position < block_end; ++position) *slots++ = first_slot + position - block_begin;
  }
}

}  // namespace outrider
