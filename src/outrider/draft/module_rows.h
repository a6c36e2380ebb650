// The rows of one module in a pass whose outputs are read at some positions only. First come rows
// that write their cache entries and go no further, then the rows whose outputs are read.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/draft/draft_rows.h"

namespace outrider {

class ModuleRows {
 public:
  ModuleRows(DraftModel& model, const std::vector<CacheGroupSpec>& groups)
      : entry_rows_(model, groups), output_rows_(model, groups) {}

  void clear() {
    entry_windows_.clear();
    output_windows_.clear();
  }

  /// Adds the rows of the next request. Entries may reach past the outputs' start; a position there
  /// has a row in both parts.
  void Add(const DraftWindow& entries, const DraftWindow& outputs) {
    entry_windows_.push_back(entries);
    output_windows_.push_back(outputs);
  }

  /// Lays out what was added. Row p of request w gets the token TokenAt(w, p).
  template <typename TokenAt>
  void Assign(TokenAt token_at) {
    entry_rows_.Assign(entry_windows_, token_at);
    output_rows_.Assign(output_windows_, token_at);
  }

  const StepInputs& entries() const { return entry_rows_.inputs(); }
  const StepInputs& outputs() const { return output_rows_.inputs(); }
  int64_t num_rows() const { return int64_t{entries().num_rows()} + outputs().num_rows(); }

  /// Calls visit(w, p, row) for every row: those of the entries, then those of the outputs. p is
  /// kLastRightRow for a row that the device moves to the last right token.
  template <typename Visit>
  void ForEachRow(Visit visit) const {
    for (size_t w = 0; w < entry_windows_.size(); ++w) {
      for (int32_t p = entry_windows_[w].start; p < entry_windows_[w].end; ++p) {
        visit(w, p, int64_t{entry_rows_.RowOf(w, p)});
      }
    }
    for (size_t w = 0; w < output_windows_.size(); ++w) {
      const DraftWindow& window = output_windows_[w];
      for (int32_t p = window.start; p < window.end; ++p) {
        visit(w, window.moved_place >= 0 ? kLastRightRow : p,
              int64_t{entries().num_rows()} + output_rows_.RowOf(w, p));
      }
    }
  }

  /// The row of request w's output. The request must have one.
  int32_t OutputRow(size_t w) const { return output_rows_.RowOf(w, output_windows_[w].start); }

 private:
  DraftRows entry_rows_;
  DraftRows output_rows_;
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> output_windows_;
};

}  // namespace outrider
