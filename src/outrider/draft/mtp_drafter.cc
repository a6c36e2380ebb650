#include "outrider/draft/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

MtpDrafter::MtpDrafter(Network& model, KvCache& cache, int32_t k, int32_t num_slots, DraftForm form,
                       KeptRows kept_rows, std::optional<int32_t> draft_vocab)
    : model_(model),
      cache_(cache),
      k_(k),
      form_(form),
      slots_(static_cast<size_t>(num_slots)),
      target_rows_(model.device(), cache, model.hidden_size(), kept_rows, num_slots,
                   /*num_last=*/0),
      entry_rows_(cache.config().groups),
      rows_(cache.config().groups),
      hidden_(model),
      next_hidden_(model),
      sampler_(draft_vocab.value_or(model.vocab_size())) {
  OUTRIDER_CHECK(k >= 1 && model.num_mtp_modules() >= 1);
}

void MtpDrafter::TakeStep(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  OUTRIDER_CHECK(r.first_position == state.frontier + 1, "slot {} jumps from {} to {}", r.slot,
                 state.frontier, r.first_position);
  target_rows_.TakeStep(r);
  state.frontier = r.frontier;
  SkipFinished(r);
}

void MtpDrafter::SkipFinished(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  state.next = target_rows_.SkipFinished(r, 0, state.next, r.first_position);
}

void MtpDrafter::FinishPass(const DraftRequest& r, int32_t frontier) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  const int32_t first = state.next;
  state.next = frontier + 1;
  target_rows_.MarkFinished(r, first, {&state.next, 1});
}

void MtpDrafter::CatchUp(const DraftRequest& r) {
  const SlotState& state = slots_[static_cast<size_t>(r.slot)];
  const int32_t& start = state.next;
  SkipFinished(r);  // what others have caught up with
  for (; start < state.first || r.first_position - start > kMostRowsBehind; SkipFinished(r)) {
    DraftRequest part = r;
    part.frontier = std::min(start + kCatchUpRows, r.first_position) - 1;
    part.first_position = part.frontier + 1;
    part.num_rows = 0;
    part.num_drafts = 0;
    FirstPass({&part, 1}, {});
    FinishPass(r, part.frontier);
  }
}

void MtpDrafter::FirstPass(std::span<const DraftRequest> requests, Tensor hidden) {
  entry_windows_.clear();
  windows_.clear();
  for (const DraftRequest& r : requests) {
    const int32_t start = slots_[static_cast<size_t>(r.slot)].next;
    // Only the frontier's output is read, where the first draft is sampled. When padded, its entry
    // is among the others as well, and written twice; rows of rejected drafts come after it, so it
    // cannot see them, and what they write is written again before anyone reads it.
    const int32_t output_start = r.num_drafts > 0 ? r.frontier : r.frontier + 1;
    const int32_t entries_end = form_ == DraftForm::kPadded
                                    ? std::max(output_start, r.first_position + r.num_rows)
                                    : output_start;
    entry_windows_.push_back({&r, start, entries_end, r.prompt_length});
    windows_.push_back({&r, output_start, r.frontier + 1, r.prompt_length});
  }
  const auto token_at = [&](size_t w, int32_t p) {
    return p <= requests[w].frontier ? requests[w].tokens[static_cast<size_t>(p) + 1] : 0;
  };
  entry_rows_.Assign(entry_windows_, token_at);
  rows_.Assign(windows_, token_at);
  const int64_t num_entries = entry_rows_.layout().num_rows();
  const Tensor rows = hidden_.Rows(num_entries + rows_.layout().num_rows());
  for (const bool of_step : {true, false}) {
    copies_.clear();
    const auto copy = [&](const DraftRequest& r, int32_t position, int64_t row) {
      if ((position >= r.first_position) != of_step) return;
      copies_.Add(
          of_step ? r.first_row + position - r.first_position : target_rows_.RowOf(r, position),
          row);
    };
    for (size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& r = requests[i];
      for (int32_t p = entry_windows_[i].start; p < entry_windows_[i].end; ++p) {
        copy(r, p, entry_rows_.RowOf(i, p));
      }
      if (r.num_drafts > 0) copy(r, r.frontier, num_entries + rows_.RowOf(i, r.frontier));
    }
    model_.CopyRows(of_step ? hidden : target_rows_.rows(), rows, copies_);
  }
  model_.ForwardMtp(0, entry_rows_.layout(), rows_.layout(), cache_, rows, rows);
  active_.clear();
  active_rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].num_drafts == 0) continue;
    active_.push_back(i);
    active_rows_.push_back(rows_.RowOf(i, requests[i].frontier));
  }
}

void MtpDrafter::NextPass(std::span<const DraftRequest> requests, int32_t step,
                          MatrixView<int32_t> drafts) {
  windows_.clear();
  size_t kept = 0;
  from_rows_.clear();
  for (size_t a = 0; a < active_.size(); ++a) {
    const DraftRequest& r = requests[active_[a]];
    if (step >= r.num_drafts) continue;
    active_[kept++] = active_[a];
    const int32_t position = r.frontier + step;
    windows_.push_back({&r, position, position + 1, 0});
    from_rows_.push_back(active_rows_[a]);
  }
  active_.resize(kept);
  const Tensor previous = OutputRows();
  rows_.Assign(windows_, [&](size_t w, int32_t) {
    return drafts.row(static_cast<int64_t>(active_[w]))[step - 1];
  });
  // The layout may order the rows anew.
  active_rows_.resize(kept);
  copies_.clear();
  for (size_t w = 0; w < kept; ++w) {
    active_rows_[w] = rows_.RowOf(w, windows_[w].start);
    copies_.Add(from_rows_[w], active_rows_[w]);
  }
  model_.CopyRows(previous, next_hidden_.Rows(rows_.layout().num_rows()), copies_);
  std::swap(hidden_, next_hidden_);
  const Tensor rows = OutputRows();
  model_.ForwardMtp(0, rows_.layout(), cache_, rows, rows);
}

Tensor MtpDrafter::OutputRows() { return hidden_.Rows(rows_.layout().num_rows()); }

void MtpDrafter::SampleDrafts(int32_t step, std::span<const DraftRequest> requests,
                              MatrixView<int32_t> drafts) {
  sampler_.Sample(model_, 0, OutputRows(), active_rows_, active_, requests, step, drafts);
}

void MtpDrafter::Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
                         MatrixView<int32_t> drafts) {
  if (target_rows_.kept() == KeptRows::kLast) depth = k_;
  for (const DraftRequest& r : requests) {
    OUTRIDER_CHECK(r.num_drafts <= depth);
    TakeStep(r);
  }
  target_rows_.CopyFrom(model_, hidden);
  if (depth > 0) {
    for (const DraftRequest& r : requests) CatchUp(r);
  }
  if (depth == 0 || requests.empty()) return;
  FirstPass(requests, hidden);
  for (const DraftRequest& r : requests) FinishPass(r, r.frontier);
  SampleDrafts(0, requests, drafts);
  for (int32_t step = 1; step < k_; ++step) {
    NextPass(requests, step, drafts);
    if (active_.empty()) return;
    SampleDrafts(step, requests, drafts);
  }
}

}  // namespace outrider
