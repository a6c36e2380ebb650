// The part of a layout whose requests have their cache entries on one of several ranks that each
// keep those of their own requests: a layout of its own, over that rank's pages.
#pragma once

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

class RowsOfRank {
 public:
  RowsOfRank(const std::vector<CacheGroupSpec>& groups, const RankPlace& place)
      : place_(place), layout_(groups) {}

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

 private:
  int32_t RankOf(const RequestRows& request) const;
  /// own: `tables`, which are this rank's, with its own numbers of pages.
  void TakeOwnPages(const StateTables& tables, StateTables& own) const;

  RankPlace place_;
  BatchLayout layout_;
  std::vector<int32_t> rows_;
  std::vector<RankRun> runs_;
  // Kept to reuse memory.
  std::vector<RequestWork> work_;
  std::vector<const RequestRows*> own_;             // of each work
  std::vector<std::vector<int32_t>> block_tables_;  // [work, groups]
  std::vector<StateTables> states_;                 // of each work
};

}  // namespace outrider
