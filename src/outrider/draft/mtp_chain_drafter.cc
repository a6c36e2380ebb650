#include "outrider/draft/mtp_chain_drafter.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

MtpChainDrafter::MtpChainDrafter(Network& model, KvCache& cache, int32_t k, int32_t num_slots,
                                 DraftForm form, KeptRows kept_rows,
                                 std::optional<int32_t> draft_vocab)
    : model_(model),
      cache_(cache),
      k_(k),
      form_(form),
      slots_(static_cast<size_t>(num_slots)),
      target_rows_(model.device(), cache, model.hidden_size(), kept_rows, num_slots, k),
      rows_(cache.config().groups),
      hidden_(model),
      entry_rows_(cache.config().groups),
      output_rows_(cache.config().groups),
      last_hidden_(model),
      sampler_(draft_vocab.value_or(model.vocab_size())) {
  OUTRIDER_CHECK(k >= 1 && k <= model.num_mtp_modules());
  for (SlotState& state : slots_) state.next.resize(static_cast<size_t>(k));
}

void MtpChainDrafter::Reset(int32_t slot, int32_t computed) {
  SlotState& state = slots_[static_cast<size_t>(slot)];
  state.first = computed;
  state.frontier = computed - 1;
  state.depth = 0;
  state.drafts.clear();
  std::fill(state.next.begin(), state.next.end(), 0);  // TakeStep skips what is final
}

int32_t MtpChainDrafter::LastRightToken(const SlotState& state, const DraftRequest& request) {
  int32_t right = state.last_known;
  for (const int32_t draft : state.drafts) {
    const auto next = static_cast<size_t>(right) + 1;
    if (next >= request.tokens.size() || request.tokens[next] != draft) break;
    ++right;
  }
  return right;
}

void MtpChainDrafter::TakeStep(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  OUTRIDER_CHECK(r.first_position == state.frontier + 1, "slot {} jumps from {} to {}", r.slot,
                 state.frontier, r.first_position);
  target_rows_.TakeStep(r);
  // The modules of the last pass read drafts, which were right up to this token.
  Advance(state, r, LastRightToken(state, r), r.first_position);
  state.frontier = r.frontier;
  SkipFinished(r);
}

void MtpChainDrafter::SkipFinished(const DraftRequest& r) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  for (int32_t m = 0; m < k_; ++m) {
    int32_t& next = state.next[static_cast<size_t>(m)];
    next = target_rows_.SkipFinished(r, m, next, r.first_position);
  }
}

void MtpChainDrafter::Advance(SlotState& state, const DraftRequest& r, int32_t right, int32_t end) {
  if (state.depth == 0) return;
  const int32_t first = state.next[static_cast<size_t>(state.depth) - 1];
  for (int32_t m = 0; m < state.depth; ++m) {
    int32_t& next = state.next[static_cast<size_t>(m)];
    next = std::max(next, std::min(right - m, end));
  }
  target_rows_.MarkFinished(r, first, state.next);
}

DraftWindow MtpChainDrafter::WindowOf(const DraftRequest& r, int32_t depth) const {
  const SlotState& state = slots_[static_cast<size_t>(r.slot)];
  // The last k-1 rows of a prompt may run again after its end. They run in the absorbed form from
  // the start, so that a row's form depends on its position only.
  const int32_t role_boundary = r.prompt_length - (k_ - 1);
  int32_t start = state.next[static_cast<size_t>(depth) - 1];
  if (form_ == DraftForm::kPadded && r.first_position >= r.prompt_length) {
    // Runs more rows than it must, if they are kept.
    const int32_t padded = std::max({r.frontier - depth, role_boundary, state.first});
    while (start > padded && target_rows_.Has(r, start - 1)) --start;
  }
  return {&r, start, r.frontier + 1, role_boundary};
}

void MtpChainDrafter::GatherHidden(std::span<const DraftRequest> requests, Tensor hidden) {
  const Tensor rows = hidden_.Rows(rows_.layout().num_rows());
  for (const bool of_step : {true, false}) {
    copies_.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& r = requests[i];
      const int32_t middle = std::clamp(r.first_position, windows_[i].start, windows_[i].end);
      const int32_t end = of_step ? windows_[i].end : middle;
      for (int32_t p = of_step ? middle : windows_[i].start; p < end; ++p) {
        copies_.Add(of_step ? r.first_row + p - r.first_position : target_rows_.RowOf(r, p),
                    rows_.RowOf(i, p));
      }
    }
    model_.CopyRows(of_step ? hidden : target_rows_.rows(), rows, copies_);
  }
}

void MtpChainDrafter::FinishPass(const DraftRequest& r, int32_t depth,
                                 std::span<const int32_t> drafts) {
  SlotState& state = slots_[static_cast<size_t>(r.slot)];
  state.depth = depth;
  state.last_known = static_cast<int32_t>(r.tokens.size()) - 1;
  state.drafts.assign(drafts.begin(), drafts.end());
  Advance(state, r, state.last_known, r.frontier + 1);
}

int32_t MtpChainDrafter::TokenAt(const DraftRequest& r, const int32_t* drafts, int32_t index) {
  const auto known = static_cast<int32_t>(r.tokens.size());
  if (index < known) return r.tokens[static_cast<size_t>(index)];
  // In the middle of a prompt there are no drafts. Any token will do, as the row runs again.
  return index - known < r.num_drafts ? drafts[index - known] : 0;
}

void MtpChainDrafter::Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
                              MatrixView<int32_t> drafts) {
  OUTRIDER_CHECK(depth >= 0 && depth <= k_);
  if (target_rows_.kept() == KeptRows::kLast) depth = k_;
  for (const DraftRequest& r : requests) {
    OUTRIDER_CHECK(r.num_drafts <= depth);
    TakeStep(r);
  }
  target_rows_.CopyFrom(model_, hidden);
  if (depth > 0) {
    for (const DraftRequest& r : requests) CatchUp(r, depth);
  }
  if (depth > 0 && !requests.empty()) Run(requests, depth, hidden, drafts);
  for (size_t i = 0; i < requests.size(); ++i) {
    target_rows_.KeepLast(requests[i]);
    FinishPass(requests[i], depth,
               {drafts.row(static_cast<int64_t>(i)), static_cast<size_t>(requests[i].num_drafts)});
  }
  target_rows_.CopyFrom(model_, hidden);
}

void MtpChainDrafter::CatchUp(const DraftRequest& r, int32_t depth) {
  const SlotState& state = slots_[static_cast<size_t>(r.slot)];
  const int32_t& start = state.next[static_cast<size_t>(depth) - 1];
  SkipFinished(r);  // what others have caught up with
  for (; start < state.first || r.first_position - start > kMostRowsBehind; SkipFinished(r)) {
    DraftRequest part = r;
    part.frontier = std::min(start + kCatchUpRows, r.first_position) - 1;
    part.num_drafts = 0;
    Run({&part, 1}, depth, {}, {});
    FinishPass(part, depth, {});
  }
}

void MtpChainDrafter::Run(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
                          MatrixView<int32_t> drafts) {
  windows_.clear();
  for (const DraftRequest& r : requests) windows_.push_back(WindowOf(r, depth));
  // Module m reads, at position p, the token at p + 1 + m.
  rows_.Assign(windows_,
               [&](size_t w, int32_t p) { return requests[w].tokens[static_cast<size_t>(p) + 1]; });
  GatherHidden(requests, hidden);
  for (int32_t m = 0; m < depth - 1; ++m) {
    if (m > 0) {
      rows_.Advance(windows_, [&](size_t w) {
        const DraftRequest& r = requests[w];
        return TokenAt(r, drafts.row(static_cast<int64_t>(w)), r.frontier + 1 + m);
      });
    }
    const Tensor rows = hidden_.Rows(rows_.layout().num_rows());
    model_.ForwardMtp(m, rows_.layout(), cache_, rows, rows);
    SampleDrafts(m, requests, rows_, rows, drafts);
  }
  RunLastModule(depth - 1, requests, drafts);
}

void MtpChainDrafter::RunLastModule(int32_t m, std::span<const DraftRequest> requests,
                                    MatrixView<int32_t> drafts) {
  entry_windows_.clear();
  output_windows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    DraftWindow entries = windows_[i];
    DraftWindow output = windows_[i];
    entries.end = output.start = requests[i].num_drafts > m ? entries.end - 1 : entries.end;
    entry_windows_.push_back(entries);
    output_windows_.push_back(output);
  }
  const auto token_at = [&](size_t w, int32_t p) {
    return TokenAt(requests[w], drafts.row(static_cast<int64_t>(w)), p + 1 + m);
  };
  entry_rows_.Assign(entry_windows_, token_at);
  output_rows_.Assign(output_windows_, token_at);

  const int32_t num_entries = entry_rows_.layout().num_rows();
  copies_.clear();
  for (size_t w = 0; w < requests.size(); ++w) {
    for (int32_t p = entry_windows_[w].start; p < entry_windows_[w].end; ++p) {
      copies_.Add(rows_.RowOf(w, p), entry_rows_.RowOf(w, p));
    }
    for (int32_t p = output_windows_[w].start; p < output_windows_[w].end; ++p) {
      copies_.Add(rows_.RowOf(w, p), num_entries + output_rows_.RowOf(w, p));
    }
  }
  const int64_t num_rows = rows_.layout().num_rows();
  const Tensor rows = last_hidden_.Rows(num_rows);
  model_.CopyRows(hidden_.Rows(num_rows), rows, copies_);
  model_.ForwardMtp(m, entry_rows_.layout(), output_rows_.layout(), cache_, rows, rows);
  SampleDrafts(m, requests, output_rows_, rows, drafts);
}

void MtpChainDrafter::SampleDrafts(int32_t m, std::span<const DraftRequest> requests,
                                   const DraftRows& draft_rows, Tensor hidden,
                                   MatrixView<int32_t> drafts) {
  sample_rows_.clear();
  active_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (m >= requests[i].num_drafts) continue;
    active_.push_back(i);
    sample_rows_.push_back(draft_rows.RowOf(i, requests[i].frontier));
  }
  sampler_.Sample(model_, m, hidden, sample_rows_, active_, requests, m, drafts);
}

}  // namespace outrider
