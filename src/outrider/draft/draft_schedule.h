// How many tokens to draft, by a table that the user gives for the number of requests that decode.
// Verifying drafts is free while a step is bound by memory. It costs throughput once a step is
// bound by arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

/// For low .. high decoding requests, num_tokens drafts each.
struct DraftRange {
  int32_t low = 0;
  int32_t high = 0;
  int32_t num_tokens = 0;
};

class DraftSchedule {
 public:
  /// Without ranges always `k`. A batch size between two ranges, or beyond the last, uses the range
  /// below it; one below the first uses k. Throws Error when a range is empty, not above the one
  /// before it, or asks for more than k tokens.
  DraftSchedule(int32_t k, std::vector<DraftRange> ranges);

  /// Drafts per request when `batch_size` requests decode.
  int32_t TokensFor(int32_t batch_size) const;

 private:
  int32_t k_;
  std::vector<DraftRange> ranges_;
};

}  // namespace outrider
