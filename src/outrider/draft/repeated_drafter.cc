#include "outrider/draft/repeated_drafter.h"

#include <algorithm>
#include <utility>

namespace outrider {

RepeatedDrafter::RepeatedDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
                                 const ModuleDrafterOptions& options)
    : ModuleDrafter(std::move(model), cache, options, /*num_modules=*/1, ReachOf(options.k)),
      first_rows_(this->model(), cache.config().groups),
      next_rows_(this->model(), cache.config().groups),
      hidden_(this->model()),
      next_hidden_(this->model()) {}

void RepeatedDrafter::RunPass(const Pass& pass) {
  FirstPass(pass);
  for (int32_t step = 0; !active_.empty(); NextPass(pass, ++step)) {
    DrawDrafts(pass, 0, hidden_.Rows(num_outputs_), rows_, active_, step);
  }
}

void RepeatedDrafter::FirstPass(const Pass& pass) {
  if (pass.launched.empty()) RunFirstRows(pass, /*is_launched=*/false);
  active_.clear();
  rows_.clear();
  for (size_t i = 0; i < pass.requests.size(); ++i) {
    if (pass.requests[i].num_drafts == 0) continue;
    active_.push_back(i);
    rows_.push_back(first_rows_.OutputRow(pass.IndexLaunched(i)));
  }
}

void RepeatedDrafter::RunFirstRows(const Pass& pass, bool is_launched) {
  first_rows_.clear();
  for (const DraftRequest& r : pass.requests) {
    // Only the frontier's output is read, where the first draft is drawn. When padded, or when it
    // has moved to before the last row, its entry is among the others as well, and written twice;
    // rows of rejected drafts come after it, so it cannot see them, and what they write is written
    // again before anyone reads it.
    const int32_t output_start = r.num_drafts > 0 ? r.frontier : r.frontier + 1;
    const bool moves = is_launched && r.frontier >= r.prompt_length;  // prompts have no drafts
    const int32_t entries_end = options().form == DraftForm::kPadded
                                    ? std::max(output_start, r.first_position + r.num_rows)
                                    : output_start;
    first_rows_.Add({&r, FinalEnd(r.slot, 0), entries_end, r.prompt_length},
                    {.request = &r,
                     .start = output_start,
                     .end = r.frontier + 1,
                     .role_boundary = r.prompt_length,
                     .moved_place = moves ? PlacesOf(r).rejected() : -1});
  }
  first_rows_.Assign([&](size_t w, int32_t p) {
    const DraftRequest& r = pass.requests[w];
    const bool draws = is_launched && r.num_drafts > 0 && p == r.frontier;
    if (draws) return TokenRef::At(PlacesOf(r).last_token());
    return p <= r.frontier ? r.tokens[static_cast<size_t>(p) + 1] : TokenRef(0);
  });
  const Tensor rows = hidden_.Rows(first_rows_.num_rows());
  GatherTarget(pass, rows, [&](auto visit) { first_rows_.ForEachRow(visit); });
  RunModule(0, first_rows_.entries(), first_rows_.outputs(), rows, rows);
  num_outputs_ = first_rows_.outputs().num_rows();
}

void RepeatedDrafter::NextPass(const Pass& pass, int32_t step) {
  windows_.clear();
  from_rows_.clear();
  size_t kept = 0;
  for (size_t a = 0; a < active_.size(); ++a) {
    const DraftRequest& r = pass.requests[active_[a]];
    if (step >= r.num_drafts) continue;
    active_[kept++] = active_[a];
    const int32_t position = r.frontier + step;
    windows_.push_back({&r, position, position + 1, 0});
    from_rows_.push_back(rows_[a]);
  }
  active_.resize(kept);
  if (kept == 0) return;
  next_rows_.Assign(windows_, [&](size_t w, int32_t) {
    return pass.drafts.row(static_cast<int64_t>(active_[w]))[step - 1];
  });
  const Tensor previous = hidden_.Rows(num_outputs_);
  num_outputs_ = next_rows_.num_rows();
  const Tensor rows = next_hidden_.Rows(num_outputs_);
  // The layout may order the rows anew.
  rows_.resize(kept);
  copies_.clear();
  for (size_t w = 0; w < kept; ++w) {
    rows_[w] = next_rows_.RowOf(w, windows_[w].start);
    copies_.Add(from_rows_[w], rows_[w]);
  }
  model().CopyRows(previous, rows, copies_);
  std::swap(hidden_, next_hidden_);
  RunModule(0, next_rows_.inputs(), rows, rows);
}

}  // namespace outrider
