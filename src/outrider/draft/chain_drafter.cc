#include "outrider/draft/chain_drafter.h"

#include <algorithm>
#include <utility>

namespace outrider {

ChainDrafter::ChainDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
                           const ModuleDrafterOptions& options)
    : ModuleDrafter(std::move(model), cache, options, /*num_modules=*/options.k,
                    ReachOf(options.k, options.form)),
      rows_(this->model(), cache.config().groups),
      hidden_(this->model()),
      launched_rows_(this->model(), cache.config().groups),
      launched_hidden_(this->model()),
      last_rows_(this->model(), cache.config().groups),
      last_hidden_(this->model()) {}

DraftWindow ChainDrafter::WindowOf(const DraftRequest& r, int32_t depth) const {
  // The last k-1 rows of a prompt may run again after its end. They run in the absorbed form from
  // the start, so that a row's form depends on its position only.
  const int32_t role_boundary = r.prompt_length - (options().k - 1);
  int32_t start = FinalEnd(r.slot, depth - 1);
  if (options().form == DraftForm::kPadded && r.first_position >= r.prompt_length) {
    // Runs more rows than it must, if they are kept.
    const int32_t padded = std::max({r.frontier - depth, role_boundary, SlotAt(r.slot).first});
    while (start > padded && target_rows().Has(r, start - 1)) --start;
  }
  return {&r, start, r.frontier + 1, role_boundary};
}

TokenRef ChainDrafter::TokenAt(const DraftRequest& r, const TokenRef* drafts, int32_t index) {
  const auto known = static_cast<int32_t>(r.tokens.size());
  if (index < known) return r.tokens[static_cast<size_t>(index)];
  // In the middle of a prompt there are no drafts. Any token will do, as the row runs again.
  return index - known < r.num_drafts ? drafts[index - known] : TokenRef(0);
}

template <typename Visit>
void ChainDrafter::ForEachRow(const DraftRows& rows, Visit visit) const {
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (int32_t p = windows_[w].start; p < windows_[w].end; ++p) visit(w, p, rows.RowOf(w, p));
  }
}

void ChainDrafter::LayOut(const Pass& pass, DraftRows& rows) {
  windows_.clear();
  for (const DraftRequest& r : pass.requests) windows_.push_back(WindowOf(r, pass.depth));
  // Module m reads, at position p, the token at p + 1 + m.
  rows.Assign(windows_, [&](size_t w, int32_t p) {
    return pass.requests[w].tokens[static_cast<size_t>(p) + 1];
  });
}

void ChainDrafter::LaunchPass(const Pass& pass) {
  LayOut(pass, launched_rows_);
  const Tensor rows = launched_hidden_.Rows(launched_rows_.num_rows());
  GatherTarget(pass, rows, [&](auto visit) { ForEachRow(launched_rows_, visit); });
  RunModule(0, launched_rows_.inputs(), rows, rows);
}

void ChainDrafter::GatherRows(const Pass& pass, Tensor rows) {
  if (pass.launched.empty()) {
    GatherTarget(pass, rows, [&](auto visit) { ForEachRow(rows_, visit); });
    return;
  }
  copies_.clear();
  ForEachRow(rows_, [&](size_t w, int32_t p, int32_t row) {
    copies_.Add(launched_rows_.RowOf(pass.launched[w], p), row);
  });
  model().CopyRows(launched_hidden_.Rows(launched_rows_.num_rows()), rows, copies_);
}

void ChainDrafter::RunPass(const Pass& pass) {
  LayOut(pass, rows_);
  const Tensor rows = hidden_.Rows(rows_.num_rows());
  GatherRows(pass, rows);
  for (int32_t m = 0; m < pass.depth - 1; ++m) {
    if (m > 0) {
      rows_.Advance(windows_, [&](size_t w) {
        const DraftRequest& r = pass.requests[w];
        return TokenAt(r, pass.drafts.row(static_cast<int64_t>(w)), r.frontier + 1 + m);
      });
    }
    if (m > 0 || pass.launched.empty()) RunModule(m, rows_.inputs(), rows, rows);
    DrawFromFrontier(pass, m, rows,
                     [&](size_t i) { return rows_.RowOf(i, pass.requests[i].frontier); });
  }
  RunLastModule(pass, pass.depth - 1);
}

void ChainDrafter::RunLastModule(const Pass& pass, int32_t m) {
  last_rows_.clear();
  for (size_t i = 0; i < pass.requests.size(); ++i) {
    DraftWindow entries = windows_[i];
    DraftWindow output = windows_[i];
    entries.end = output.start = pass.requests[i].num_drafts > m ? entries.end - 1 : entries.end;
    last_rows_.Add(entries, output);
  }
  last_rows_.Assign([&](size_t w, int32_t p) {
    return TokenAt(pass.requests[w], pass.drafts.row(static_cast<int64_t>(w)), p + 1 + m);
  });
  copies_.clear();
  last_rows_.ForEachRow(
      [&](size_t w, int32_t p, int64_t row) { copies_.Add(rows_.RowOf(w, p), row); });
  const Tensor rows = last_hidden_.Rows(last_rows_.num_rows());
  model().CopyRows(hidden_.Rows(rows_.num_rows()), rows, copies_);
  RunModule(m, last_rows_.entries(), last_rows_.outputs(), rows, rows);
  DrawFromFrontier(pass, m, rows, [&](size_t i) { return last_rows_.OutputRow(i); });
}

template <typename RowOf>
void ChainDrafter::DrawFromFrontier(const Pass& pass, int32_t m, Tensor hidden, RowOf row_of) {
  active_.clear();
  draw_rows_.clear();
  for (size_t i = 0; i < pass.requests.size(); ++i) {
    if (m >= pass.requests[i].num_drafts) continue;
    active_.push_back(i);
    draw_rows_.push_back(row_of(i));
  }
  DrawDrafts(pass, m, hidden, draw_rows_, active_, m);
}

}  // namespace outrider
