#include "outrider/draft/draft_rows.h"

#include <algorithm>

namespace outrider {

void DraftRows::LayOut(std::span<const DraftWindow> windows) {
  work_.clear();
  work_part_.clear();
  parts_.assign(windows.size() * 2, {0, 0});
  size_t next = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const DraftWindow& window = windows[w];
    const int32_t middle = std::clamp(window.role_boundary, window.start, window.end);
    const auto add = [&](Phase phase, int32_t first, int32_t end, size_t part) {
      if (first == end) return;
      const auto count = static_cast<size_t>(end - first);
      work_.push_back({.slot = window.request->slot,
                       .phase = phase,
                       .context_length = first,
                       .tokens = std::span(tokens_).subspan(next, count),
                       .draft_tokens = {},
                       .samples = false,
                       .block_tables = window.request->block_tables});
      work_part_.push_back(part);
      next += count;
    };
    add(Phase::kPromptChunk, window.start, middle, 2 * w);
    add(Phase::kDecode, middle, window.end, 2 * w + 1);
  }
  layout_.Assign(work_);
  for (const RequestRows& rows : layout_.requests()) {
    parts_[work_part_[static_cast<size_t>(rows.work_index)]] = {rows.context_length,
                                                                rows.first_row};
  }
  plan_.Assign(layout_);
  for (size_t w = 0; w < windows.size(); ++w) {
    // RowOf tells the two parts of a window apart by the absorbed part's first position.
    if (windows[w].role_boundary >= windows[w].end) {
      parts_[2 * w + 1].first_position = windows[w].end;
    }
  }
  moved_places_.clear();
  for (size_t w = 0; w < windows.size(); ++w) {
    const DraftWindow& window = windows[w];
    if (window.moved_place < 0 || window.start == window.end) continue;
    moved_places_.resize(static_cast<size_t>(layout_.num_rows()), -1);
    const auto count = static_cast<size_t>(window.end - window.start);
    std::fill_n(moved_places_.begin() + RowOf(w, window.start), count, window.moved_place);
  }
  inputs_->Assign(layout_, plan_, RowCount::kRounded, moved_places_);
}

void DraftRows::Shift(std::span<const DraftWindow> windows) {
  sources_.resize(static_cast<size_t>(layout_.num_rows()));
  for (size_t w = 0; w < windows.size(); ++w) {
    for (int32_t p = windows[w].start; p < windows[w].end; ++p) {
      sources_[static_cast<size_t>(RowOf(w, p))] =
          p + 1 < windows[w].end ? RowOf(w, p + 1) : -1 - static_cast<int32_t>(w);
    }
  }
  inputs_->ShiftTokens(sources_, tokens_);
}

int32_t DraftRows::RowOf(size_t window, int32_t position) const {
  const Part& absorbed = parts_[2 * window + 1];
  const Part& part = position >= absorbed.first_position ? absorbed : parts_[2 * window];
  return part.first_row + position - part.first_position;
}

}  // namespace outrider
