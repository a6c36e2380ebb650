#include "outrider/batch/rows_of_rank.h"

#include <algorithm>
#include <numeric>

#include "outrider/base/error.h"
#include "outrider/kv/page_number.h"

namespace outrider {

void AddRankRows(int32_t first, int32_t count, int32_t rank, std::vector<RankRun>& runs) {
  if (!runs.empty()) {
    RankRun& last = runs.back();
    if (last.rank == rank && last.first + last.count == first) {
      last.count += count;
      return;
    }
  }
  runs.push_back({first, count, rank});
}

int32_t PlacesOfRanks(int32_t rows, int32_t most, int32_t ranks) {
  const int32_t even = (rows + ranks - 1) / ranks;
  int32_t places = even;
  for (int32_t more = (even + 3) / 4; places < most; more *= 2) places = even + more;
  return std::min(places, rows);
}

int32_t RowsOfRank::RankOf(const RequestRows& request) const {
  // The pages of the last rows are there; those before a window have no number.
  for (size_t g = 0; g < layout_.groups().size(); ++g) {
    const int32_t last =
        layout_.groups()[g].BlocksBefore(request.context_length + request.query_length) - 1;
    const int32_t page = request.block_tables[g][static_cast<size_t>(last)];
    if (page >= 0) return RankOfPage(page, place_.ranks);
  }
  OUTRIDER_CHECK(false, "slot {} has no pages", request.slot);
}

void RowsOfRank::TakeOwnPages(const StateTables& tables, StateTables& own) const {
  const auto take = [&](const std::vector<int32_t>& pages, std::vector<int32_t>& to) {
    to.clear();
    for (const int32_t page : pages) to.push_back(OwnPage(page, place_.ranks));
  };
  take(tables.state, own.state);
  take(tables.rows, own.rows);
  take(tables.restored, own.restored);
  own.checkpoints.resize(tables.checkpoints.size());
  for (size_t i = 0; i < own.checkpoints.size(); ++i) {
    own.checkpoints[i].tokens = tables.checkpoints[i].tokens;
    take(tables.checkpoints[i].pages, own.checkpoints[i].pages);
  }
}

void RowsOfRank::Assign(const BatchLayout& layout) {
  const size_t num_groups = layout_.groups().size();
  OUTRIDER_CHECK(layout.groups().size() == num_groups);
  runs_.clear();
  counts_.assign(counts_.size(), 0);
  side_by_side_.clear();
  own_.clear();
  work_.clear();
  rows_.clear();
  for (const RequestRows& request : layout.requests()) {
    const int32_t rank = RankOf(request);
    AddRankRows(request.first_row, request.query_length, rank, runs_);
    int32_t& count = counts_[static_cast<size_t>(rank)];
    for (int32_t i = 0; i < request.query_length; ++i) {
      side_by_side_.push_back(count++ * place_.ranks + rank);
    }
    if (rank == place_.rank) own_.push_back(&request);
  }
  block_tables_.resize(std::max(block_tables_.size(), own_.size() * num_groups));
  states_.resize(std::max(states_.size(), own_.size()));
  for (size_t i = 0; i < own_.size(); ++i) {
    const RequestRows& request = *own_[i];
    for (size_t g = 0; g < num_groups; ++g) {
      std::vector<int32_t>& own = block_tables_[i * num_groups + g];
      own.clear();
      for (const int32_t page : request.block_tables[g]) {
        own.push_back(page < 0 ? page : OwnPage(page, place_.ranks));
      }
    }
    StateWork state = request.state;
    if (state.tables != nullptr) {
      TakeOwnPages(*state.tables, states_[i]);
      state.tables = &states_[i];
    }
    const auto drafts = static_cast<size_t>(request.num_drafts);
    const auto known = static_cast<size_t>(request.query_length) - drafts;
    const auto tokens = layout.tokens().subspan(static_cast<size_t>(request.first_row));
    work_.push_back(
        {.slot = request.slot,
         .phase = request.phase == Phase::kDecode ? Phase::kDecode : Phase::kPromptChunk,
         .context_length = request.context_length,
         .tokens = tokens.first(known),
         .draft_tokens = tokens.subspan(known, drafts),
         .samples = false,
         .block_tables = std::span(block_tables_).subspan(i * num_groups, num_groups),
         .state = state});
  }
  layout_.Assign(work_);
  for (const RequestRows& own : layout_.requests()) {
    const RequestRows& request = *own_[static_cast<size_t>(own.work_index)];
    const size_t first = rows_.size();
    rows_.resize(first + static_cast<size_t>(own.query_length));
    std::iota(rows_.begin() + static_cast<std::ptrdiff_t>(first), rows_.end(), request.first_row);
  }
  // Others know where this rank's rows are from the whole layout alone.
  OUTRIDER_CHECK(std::ranges::is_sorted(rows_));
}

}  // namespace outrider
