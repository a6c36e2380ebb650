// A drafter's rows between two calls of a network: memory of its device that grows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "outrider/networks/network.h"

namespace outrider {

class DraftMemory {
 public:
  explicit DraftMemory(const Network& network) : network_(&network) {}

  /// The first `count` rows [count, hidden]. What they held is lost when there were fewer.
  Tensor Rows(int64_t count) {
    if (memory_ == nullptr || memory_->rows().rows < count) {
      const int64_t room = std::max(count, memory_ == nullptr ? 0 : 2 * memory_->rows().rows);
      memory_ = network_->device().ops.MakeRows(room, network_->hidden_size());
    }
    return memory_->rows().Rows(0, count);
  }

 private:
  const Network* network_;
  std::unique_ptr<RowMemory> memory_;
};

}  // namespace outrider
