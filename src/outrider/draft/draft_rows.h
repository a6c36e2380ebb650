// The rows of one pass of modules: for each request the positions [start, frontier], split
// by role into a part in the expanded form and a part in the absorbed form.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/draft/drafter.h"
#include "outrider/networks/draft_model.h"

namespace outrider {

/// The rows of one request in a pass.
struct DraftWindow {
  const DraftRequest* request = nullptr;
  int32_t start = 0;          // first position
  int32_t end = 0;            // one past the last position
  int32_t role_boundary = 0;  // positions below it run expanded, the others absorbed
  /// Place of the number to subtract from `start` and `end` (StepInputs::Assign); of absorbed rows
  /// only. Negative: none.
  int32_t moved_place = -1;
};

/// Stands for a position that only the device knows yet: that of a step's last right token.
inline constexpr int32_t kLastRightRow = -1;

class DraftRows {
 public:
  /// Rows of passes of `model`, which must outlive the object.
  DraftRows(DraftModel& model, std::vector<CacheGroupSpec> groups)
      : layout_(std::move(groups)),
        plan_(model.attention()),
        inputs_(model.device().ops.MakeStepInputs()) {}

  /// Lays out the windows. Row p of window w gets the token TokenAt(w, p).
  template <typename TokenAt>
  void Assign(std::span<const DraftWindow> windows, TokenAt token_at) {
    tokens_.clear();
    for (size_t w = 0; w < windows.size(); ++w) {
      for (int32_t p = windows[w].start; p < windows[w].end; ++p) tokens_.push_back(token_at(w, p));
    }
    LayOut(windows);
  }

  /// Lays the windows out one token further: each row gets the token of the row after it, and the
  /// last row of window w the token LastToken(w).
  template <typename LastToken>
  void Advance(std::span<const DraftWindow> windows, LastToken last_token) {
    tokens_.clear();
    for (size_t w = 0; w < windows.size(); ++w) tokens_.push_back(last_token(w));
    Shift(windows);
  }

  /// The number of rows, with those that the device has added (RowCount::kRounded).
  int32_t num_rows() const { return inputs_->num_rows(); }
  const StepInputs& inputs() const { return *inputs_; }

  /// The row of `position` of window w.
  int32_t RowOf(size_t window, int32_t position) const;

 private:
  void LayOut(std::span<const DraftWindow> windows);
  void Shift(std::span<const DraftWindow> windows);

  struct Part {
    int32_t first_position;
    int32_t first_row;
  };

  BatchLayout layout_;
  AttentionPlan plan_;
  std::unique_ptr<StepInputs> inputs_;
  std::vector<TokenRef> tokens_;       // in order of windows and positions; the last of each window
  std::vector<int32_t> sources_;       // [rows] of the next tokens
  std::vector<int32_t> moved_places_;  // [rows] of windows of which one is moved
  std::vector<RequestWork> work_;
  std::vector<size_t> work_part_;  // [work] the index into parts_
  std::vector<Part> parts_;        // two per window: expanded, absorbed
};

}  // namespace outrider
