#include "outrider/draft/draft_schedule.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

DraftSchedule::DraftSchedule(int32_t k, std::vector<DraftRange> ranges)
    : k_(k), ranges_(std::move(ranges)) {
  int32_t end = 0;
  for (const DraftRange& range : ranges_) {
    if (range.low <= end || range.high < range.low) {
      throw InvalidArgument(
          "num_speculative_tokens_per_batch_size: the range [{}, {}] must be above {} and not "
          "empty",
          range.low, range.high, end);
    }
    if (range.num_tokens < 0 || range.num_tokens > k) {
      throw InvalidArgument(
          "num_speculative_tokens_per_batch_size: {} tokens for batches of {} to {}: it must be 0 "
          "to {} (num_speculative_tokens)",
          range.num_tokens, range.low, range.high, k);
    }
    end = range.high;
  }
}

int32_t DraftSchedule::TokensFor(int32_t batch_size) const {
  int32_t tokens = k_;
  for (const DraftRange& range : ranges_) {
    if (batch_size < range.low) break;
    tokens = range.num_tokens;
  }
  return tokens;
}

}  // namespace outrider
