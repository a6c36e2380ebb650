// A member of a device's StepInputs that makes the inputs of the rank's own rows (OwnRows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "outrider/ops/step_inputs.h"

namespace outrider {

/// `Inputs`: the device's StepInputs.
template <typename Inputs>
class OwnPart {
 public:
  /// whole, whole_plan: of the step. arguments: of the constructor of `Inputs`.
  template <typename... Arguments>
  OwnPart(const BatchLayout& whole, const AttentionPlan& whole_plan, Arguments&&... arguments)
      : rows_({whole.groups().begin(), whole.groups().end()}, whole_plan.cache_place()),
        plan_(whole_plan.OfOwnRows()),
        inputs_(std::forward<Arguments>(arguments)...) {}

  /// Replaces the own rows by those of `whole`. Their inputs are still to be assigned.
  const RowsOfRank& Divide(const BatchLayout& whole) {
    rows_.Assign(whole);
    plan_.Assign(rows_.layout());
    return rows_;
  }
  const RowsOfRank& rows() const { return rows_; }
  Inputs& inputs() { return inputs_; }
  /// Replaces the inputs by those of the rows that were divided last.
  void Assign(RowCount count) {
    inputs_.Assign(rows_.layout(), plan_, count);
    in_.clear();
    out_.clear();
    for (size_t i = 0; i < rows_.rows().size(); ++i) {
      in_.Add(rows_.rows()[i], static_cast<int64_t>(i));
      out_.Add(static_cast<int64_t>(i), rows_.rows()[i]);
    }
    own_.emplace(inputs_, in_, out_, rows_.runs());
  }

  const OwnRows& own() const { return *own_; }

 private:
  RowsOfRank rows_;
  AttentionPlan plan_;
  Inputs inputs_;
  RowCopies in_;
  RowCopies out_;
  std::optional<OwnRows> own_;
};

}  // namespace outrider
