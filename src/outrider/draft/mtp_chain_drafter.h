// k MTP modules in a chain, each reading the one before, as DeepSeek-V3 trains them
// (arXiv:2412.19437 §2.2).
//
// Module m at position p reads the token t[p+1+m] and module m-1's output at p (the target's, for
// m = 0). The row is final once t[p+1+m] is known to be right. Rows at the frontier read drafts,
// and are wrong if these are rejected. So each pass begins at the first row that is not final in
// every module, and runs positions [min(first new, last right token - (k-1)), frontier]. In the
// padded form it runs the last k+1 positions, which always include these. Its input are the
// target's hidden rows, some of them from earlier steps (TargetHiddenRows). After every pass each
// module's cache equals a recomputation from scratch from the known tokens.
//
// A pass of depth d runs the first d modules, as if k were d. The other modules fall behind. A
// deeper pass begins at the first row that is not final in the last of its modules: that is how
// modules catch up.
//
// The output of the last module is read at the frontier only, where its draft is sampled. Its rows
// before write their cache entries and go no further.
#pragma once

#include <optional>
#include <vector>

#include "outrider/draft/draft_memory.h"
#include "outrider/draft/draft_rows.h"
#include "outrider/draft/draft_sampler.h"
#include "outrider/draft/drafter.h"
#include "outrider/draft/target_hidden_rows.h"
#include "outrider/networks/network.h"

namespace outrider {

class MtpChainDrafter : public Drafter {
 public:
  /// Uses the first k modules of the model, 1 <= k <= model.num_mtp_modules(). draft_vocab: drafts
  /// are among so many first tokens; unset: all.
  MtpChainDrafter(Network& model, KvCache& cache, int32_t k, int32_t num_slots, DraftForm form,
                  KeptRows kept_rows = KeptRows::kAll, std::optional<int32_t> draft_vocab = {});

  int32_t max_drafts() const override { return k_; }
  int32_t lookahead() const override { return 0; }
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
               MatrixView<int32_t> drafts) override;
  int32_t rerun_tokens() const override { return form_ == DraftForm::kPadded ? k_ : k_ - 1; }
  int32_t tokens_ahead() const override { return k_; }
  void Reset(int32_t slot, int32_t computed) override;

  /// Positions of a slot below it have final entries in module m.
  int32_t FinalEnd(int32_t slot, int32_t m) const {
    return slots_[static_cast<size_t>(slot)].next[static_cast<size_t>(m)];
  }

 private:
  struct SlotState {
    int32_t first = 0;            // positions below came from the prefix cache
    int32_t frontier = -1;        // last position that a step has computed
    int32_t depth = 0;            // of the last pass
    int32_t last_known = -1;      // index of the last token that was known then
    std::vector<int32_t> drafts;  // what the pass drafted after it
    std::vector<int32_t> next;    // [k] first position not final in module m; does not rise with m
  };

  static int32_t LastRightToken(const SlotState& state, const DraftRequest& request);
  /// Takes a step. Its tokens tell which of the last drafts were right.
  void TakeStep(const DraftRequest& request);
  /// Moves `next` past blocks that modules have finished for other requests.
  void SkipFinished(const DraftRequest& request);
  /// Moves `next` of the modules of the last pass: they read right tokens up to index `right`, and
  /// ran the positions below `end`.
  void Advance(SlotState& state, const DraftRequest& request, int32_t right, int32_t end);
  DraftWindow WindowOf(const DraftRequest& request, int32_t depth) const;
  /// Runs modules of one request that are many rows behind, or behind in blocks from the prefix
  /// cache. Requests may share these blocks, so they do not run in one pass with other requests: no
  /// entry is written twice in a pass.
  void CatchUp(const DraftRequest& request, int32_t depth);
  /// One pass. hidden: the rows of the step; rows before it come from target_rows_.
  void Run(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
           MatrixView<int32_t> drafts);
  void GatherHidden(std::span<const DraftRequest> requests, Tensor hidden);
  /// Notes what a pass has run and drafted.
  void FinishPass(const DraftRequest& request, int32_t depth, std::span<const int32_t> drafts);
  /// Token `index` of a request: a known one, or one of `drafts` after them.
  static int32_t TokenAt(const DraftRequest& request, const int32_t* drafts, int32_t index);
  void RunLastModule(int32_t m, std::span<const DraftRequest> requests, MatrixView<int32_t> drafts);
  /// Draft m of the requests that want it, from the frontier's row of `hidden`.
  void SampleDrafts(int32_t m, std::span<const DraftRequest> requests, const DraftRows& draft_rows,
                    Tensor hidden, MatrixView<int32_t> drafts);

  Network& model_;
  KvCache& cache_;
  int32_t k_;
  DraftForm form_;
  std::vector<SlotState> slots_;
  TargetHiddenRows target_rows_;
  DraftRows rows_;  // of all modules but the last
  std::vector<DraftWindow> windows_;
  DraftMemory hidden_;     // [rows, hidden] of the pass
  DraftRows entry_rows_;   // of the last module: rows that leave their entries only,
  DraftRows output_rows_;  // and rows that a draft is sampled from
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> output_windows_;
  DraftMemory last_hidden_;  // [rows, hidden] of the last pass
  RowCopies copies_;
  std::vector<size_t> active_;        // requests that want this module's draft
  std::vector<int32_t> sample_rows_;  // the row of each one's draft
  DraftSampler sampler_;
};

}  // namespace outrider
