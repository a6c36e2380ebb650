// Rows that a drafter keeps between two passes, in memory of its device that grows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "outrider/networks/draft_model.h"

namespace outrider {

class DraftMemory {
 public:
  /// Of rows that the model's modules write; or of `width` numbers each.
  explicit DraftMemory(const DraftModel& model) : DraftMemory(model, model.width()) {}
  DraftMemory(const DraftModel& model, int32_t width) : model_(&model), width_(width) {}

  /// Returns the first `count` rows [count, width]. If there were fewer, what they held is lost.
  Tensor Rows(int64_t count) {
    if (memory_ == nullptr || memory_->rows().rows < count) {
      const int64_t room = std::max(count, memory_ == nullptr ? 0 : 2 * memory_->rows().rows);
      memory_ = model_->device().ops.MakeRows(room, width_);
    }
    return memory_->rows().Rows(0, count);
  }

 private:
  const DraftModel* model_;
  int32_t width_;
  std::unique_ptr<RowMemory> memory_;
};

}  // namespace outrider
