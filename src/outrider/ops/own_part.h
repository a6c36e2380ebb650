// What a device's StepInputs keep of the part of a step whose attention this rank runs (OwnRows).
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
  /// inputs: of the part, without rows. The others: of the step.
  template <typename... Arguments>
  OwnPart(const BatchLayout& whole, const AttentionPlan& whole_plan, Arguments&&... arguments)
      : rows_({whole.groups().begin(), whole.groups().end()}, whole_plan.cache_place()),
        plan_(whole_plan.OfOwnRows()),
        inputs_(std::forward<Arguments>(arguments)...) {}

  /// Replaces the part by that of `whole`.
  void Assign(const BatchLayout& whole) {
    rows_.Assign(whole);
    plan_.Assign(rows_.layout());
    inputs_.Assign(rows_.layout(), plan_, RowCount::kExact);
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
