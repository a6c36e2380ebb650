// Work on the rows of a step one by one, each with the request that it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/context.h"

namespace outrider::cpu {

/// Calls run(row, position, index of the row's span) for every row of the spans, in parallel.
template <typename Run>
void ForSpanRows(const Context& context, std::span<const AttentionSpan> spans, Run run) {
  int64_t rows = 0;
  for (const AttentionSpan& span : spans) rows += span.query_length;
  const Scratch::Frame frame(context.arena);
  auto* span_of = context.arena.Take<int32_t>(rows);
  auto* row_of = context.arena.Take<int32_t>(rows);
  int64_t next = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    for (int32_t i = 0; i < spans[s].query_length; ++i, ++next) {
      span_of[next] = static_cast<int32_t>(s);
      row_of[next] = spans[s].first_row + i;
    }
  }
  context.pool->ParallelFor(rows, [&](int64_t i, int /*thread*/) {
    const AttentionSpan& span = spans[static_cast<size_t>(span_of[i])];
    run(row_of[i], span.context_length + row_of[i] - span.first_row,
        static_cast<size_t>(span_of[i]));
  });
}

/// Memory that a thread reuses.
struct RowScratch {
  std::vector<float> values;
  std::vector<float> scores;
  std::vector<int32_t> order;
  std::vector<std::byte> entries;  // of a rounded cache, as they are multiplied
};

inline RowScratch& ScratchOfRow() {
  thread_local RowScratch scratch;
  return scratch;
}

}  // namespace outrider::cpu
