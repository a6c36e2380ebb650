// The requests of a plan as operations of attention take them.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/batch/batch_layout.h"
#include "outrider/ops/context.h"

namespace outrider {

/// With rows counted from first_row on and the block tables of a cache group; memory of the arena.
inline std::span<const AttentionSpan> AttentionSpans(const Context& context,
                                                     std::span<const RequestRows> requests,
                                                     int32_t first_row, int32_t group) {
  auto* spans = context.arena.Take<AttentionSpan>(static_cast<int64_t>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRows& r = requests[i];
    spans[i] = {r.first_row - first_row, r.query_length, r.context_length, r.block_table(group)};
  }
  return {spans, requests.size()};
}

}  // namespace outrider
