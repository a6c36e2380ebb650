// The part of a layout whose requests have their cache entries on one of several ranks that each
// keep those of their own requests: a layout of its own, over that rank's pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/parallel/share.h"

namespace outrider {

/// Consecutive rows [first, first + count) that one rank has.
struct RankRun {
  int32_t first = 0;
  int32_t count = 0;
  int32_t rank = 0;

  bool operator==(const RankRun&) const = default;
};

/// Appends rows [first, first + count) of `rank`, to the last run where they go on with it.
void AddRankRows(int32_t first, int32_t count, int32_t rank, std::vector<RankRun>& runs);

/// How many places every rank gets for its own rows where a step has one shape for all divisions of
/// its `rows` among `ranks`: at least `most`, the number of the rank that has most of them. An even
/// share, which quarters of it, or halves, or ever larger parts are added to, so a step of so many
/// rows has few shapes.
int32_t PlacesOfRanks(int32_t rows, int32_t most, int32_t ranks);

class RowsOfRank {
 public:
  RowsOfRank(const std::vector<CacheGroupSpec>& groups, const RankPlace& place)
      : place_(place), layout_(groups), counts_(static_cast<size_t>(place.ranks)) {}

  /// Replaces the part by that of `layout`, which must stay as it is while this one is read. A
  /// request belongs to the rank that has its pages. Reuses memory.
  void Assign(const BatchLayout& layout);

  /// The rank's requests, in their order in the whole layout, with its own numbers of pages. No row
  /// is sampled.
  const BatchLayout& layout() const { return layout_; }
  /// [rows of layout()] which row of the whole layout each is.
  std::span<const int32_t> rows() const { return rows_; }
  /// All rows of the whole layout, by the ranks that have them.
  std::span<const RankRun> runs() const { return runs_; }
  /// How many rows the rank has that has most of them.
  int32_t most_rows() const { return *std::ranges::max_element(counts_); }
  /// [rows of the whole layout] where each stands if the ranks' rows lie side by side: row i of
  /// rank r is number i * ranks + r.
  std::span<const int32_t> side_by_side() const { return side_by_side_; }

 private:
  int32_t RankOf(const RequestRows& request) const;
  /// own: `tables`, which are this rank's, with its own numbers of pages.
  void TakeOwnPages(const StateTables& tables, StateTables& own) const;

  RankPlace place_;
  BatchLayout layout_;
  std::vector<int32_t> rows_;
  std::vector<RankRun> runs_;
  std::vector<int32_t> counts_;  // of rows, by rank
  std::vector<int32_t> side_by_side_;
  // Kept to reuse memory.
  std::vector<RequestWork> work_;
  std::vector<const RequestRows*> own_;             // of each work
  std::vector<std::vector<int32_t>> block_tables_;  // [work, groups]
  std::vector<StateTables> states_;                 // of each work
};

}  // namespace outrider
