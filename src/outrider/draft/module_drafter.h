// The base of drafters that run modules of a draft model. It keeps account of the entries of each
// request that are final in each module, and of the target's rows that modules still need. A
// strategy derives from it and says which rows a pass runs.
//
// Module m at position p reads the token t[p+1+m] and a hidden row of p: the target's, or module
// m-1's output. Its entry is *final* once t[p+1+m] is known to be right; rows at the frontier read
// drafts. After every pass each module's entries equal a recomputation from scratch from the known
// tokens.
//
// Modules that do not run after a step fall behind. A pass that runs them again begins at their
// first entry that is not final. Rows that lie far back, or in blocks from the prefix cache, run
// before that pass, one request at a time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "outrider/draft/draft_rows.h"
#include "outrider/draft/draft_sampler.h"
#include "outrider/draft/drafter.h"
#include "outrider/draft/target_hidden_rows.h"
#include "outrider/networks/draft_model.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

struct ModuleDrafterOptions {
  int32_t k = 1;          // most drafts per request
  int32_t num_slots = 1;  // of requests
  DraftForm form = DraftForm::kCompacted;
  KeptRows kept_rows = KeptRows::kAll;
};

class ModuleDrafter : public Drafter {
 public:
  int32_t max_drafts() const override { return options_.k; }
  std::span<const int32_t> taps() const override { return model_->taps(); }
  double busy_seconds() const override { return model_->busy_seconds(); }
  ReplayCounts replay_counts() const override { return model_->replay_counts(); }
  DrafterReach reach() const override { return reach_; }
  std::optional<Ticket> Launch(std::span<const DraftRequest> requests, int32_t depth,
                               Tensor target) override;
  void Wait(Ticket ticket, std::span<const DraftRequest> requests,
            MatrixView<TokenRef> drafts) override;
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
               MatrixView<TokenRef> drafts) override;
  void Reset(int32_t slot, int32_t computed) override;
  int64_t page_bytes() const override { return target_rows_.page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) const override {
    target_rows_.ReadPage(model_->device().ops, page, to);
  }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    target_rows_.WritePage(model_->device().ops, page, from);
  }

  /// The first position of a slot whose entry is not final in module m.
  int32_t FinalEnd(int32_t slot, int32_t m) const {
    return SlotAt(slot).next[static_cast<size_t>(m)];
  }

 protected:
  /// Runs the first `num_modules` modules of the model.
  ModuleDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
                const ModuleDrafterOptions& options, int32_t num_modules,
                const DrafterReach& reach);

  struct SlotState {
    int32_t first = 0;             // positions below came from the prefix cache
    int32_t frontier = -1;         // last position that a step has computed
    int32_t depth = 0;             // modules that the last pass ran
    int32_t last_known = -1;       // index of the last token that was known then
    std::vector<TokenRef> drafts;  // what the pass drafted after it; may be on the device
    std::vector<int32_t> next;     // [modules] first position not final; does not rise with m
  };

  /// A pass over rows of requests.
  struct Pass {
    std::span<const DraftRequest> requests;
    int32_t depth = 0;                 // modules that run, at least 1
    Tensor target = {};                // the rows of the step, as module 0 reads them
    MatrixView<TokenRef> drafts = {};  // [requests, k]
    /// Each request's index in the pass that was launched with it; empty: none was.
    std::span<const size_t> launched = {};

    size_t IndexLaunched(size_t i) const { return launched.empty() ? i : launched[i]; }
  };

  /// Runs the first `depth` modules over every row up to the frontier that is not final in all of
  /// them, and draws the drafts that requests want.
  virtual void RunPass(const Pass& pass) = 0;

  /// Whether a pass of `depth` modules can be launched before the host knows what was right.
  virtual bool CanLaunch(int32_t depth) const = 0;
  /// Runs the beginning of a pass. Its requests are described as for Drafter::Launch.
  virtual void LaunchPass(const Pass& pass) = 0;

  SlotPlaces PlacesOf(const DraftRequest& request) const { return {request.slot, options_.k}; }

  /// rows[row] = what module 0 reads at p, for each row that for_each_row(visit(w, p, row)) names:
  /// from the rows of the step, those before it from the kept ones. p may be kLastRightRow.
  template <typename ForEachRow>
  void GatherTarget(const Pass& pass, Tensor rows, ForEachRow for_each_row) {
    step_copies_.clear();
    kept_copies_.clear();
    kept_runs_.clear();
    for_each_row([&](size_t w, int32_t p, int64_t row) {
      const DraftRequest& r = pass.requests[w];
      if (p == kLastRightRow) {
        step_copies_.AddFromPlace(PlacesOf(r).last_row(), row);
      } else if (p >= r.first_position) {
        step_copies_.Add(r.first_row + p - r.first_position, row);
      } else {
        const int32_t rank = target_rows_.RankOf(r, p);
        if (rank == target_rows_.place().rank) kept_copies_.Add(target_rows_.RowOf(r, p), row);
        if (target_rows_.divided()) AddRankRows(static_cast<int32_t>(row), 1, rank, kept_runs_);
      }
    });
    model_->CopyRows(pass.target, rows, step_copies_);
    model_->CopyRows(target_rows_.rows(), rows, kept_copies_);
    if (target_rows_.divided()) model_->ShareRows(rows, kept_runs_);
  }

  /// Draft `step` of the requests named by `indices`, from the rows of `hidden` that module m made.
  void DrawDrafts(const Pass& pass, int32_t m, Tensor hidden, std::span<const int32_t> rows,
                  std::span<const size_t> indices, int32_t step) {
    sampler_.Sample(*model_, m, hidden, rows, indices, pass.requests, step, pass.drafts);
  }

  void RunModule(int32_t m, const StepInputs& rows, Tensor previous, Tensor hidden) {
    model_->Forward({m, *no_rows_, rows, previous, hidden}, cache_);
  }
  void RunModule(int32_t m, const StepInputs& entries, const StepInputs& outputs, Tensor previous,
                 Tensor hidden) {
    model_->Forward({m, entries, outputs, previous, hidden}, cache_);
  }

  DraftModel& model() const { return *model_; }
  const ModuleDrafterOptions& options() const { return options_; }
  const SlotState& SlotAt(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  const TargetHiddenRows& target_rows() const { return target_rows_; }

 private:
  int32_t LastRightToken(const SlotState& state, const DraftRequest& request) const;
  /// Takes a step of a request, whose tokens tell which of the last drafts were right.
  void TakeStep(const DraftRequest& request);
  /// Moves `next` past blocks that modules have finished for other requests.
  void SkipFinished(const DraftRequest& request);
  /// Moves `next` of the modules that the last pass ran. They read right tokens up to index
  /// `right`, and ran the positions below `end`.
  void Advance(SlotState& state, const DraftRequest& request, int32_t right, int32_t end);
  /// Runs modules of one request that are many rows behind, or behind in blocks from the prefix
  /// cache. Requests may share these blocks, so they do not run in one pass with other requests: no
  /// entry is written twice in a pass.
  void CatchUp(const DraftRequest& request, int32_t depth);
  /// Takes the step whose rows module 0 reads as `rows`, and runs a pass, or what is left of it.
  void Draft(std::span<const DraftRequest> requests, int32_t depth, Tensor rows,
             MatrixView<TokenRef> drafts);
  /// With KeptRows::kLast all modules run.
  int32_t DepthOf(int32_t depth) const {
    return target_rows_.kept() == KeptRows::kLast ? options_.k : depth;
  }
  /// Notes what a pass has run and drafted.
  void FinishPass(const DraftRequest& request, int32_t depth, std::span<const TokenRef> drafts);

  std::unique_ptr<DraftModel> model_;
  KvCache& cache_;
  ModuleDrafterOptions options_;
  int32_t num_modules_;
  DrafterReach reach_;
  std::vector<SlotState> slots_;
  TargetHiddenRows target_rows_;
  DraftSampler sampler_;
  RowCopies step_copies_;
  RowCopies kept_copies_;
  std::vector<RankRun> kept_runs_;  // rows that come from kept ones, by rank
  std::unique_ptr<StepInputs> no_rows_;
  // The call of Launch that Wait is to follow; without slots there was none.
  Ticket last_launched_ = 0;
  std::vector<int32_t> launched_slots_;
  int32_t launched_depth_ = 0;
  Tensor launched_rows_;          // what module 0 reads
  std::vector<size_t> launched_;  // see Pass
};

}  // namespace outrider
