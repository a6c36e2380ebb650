// k MTP modules in a chain, each reading the one before, as DeepSeek-V3 trains them
// (arXiv:2412.19437 §2.2).
//
// Module m at position p reads the token t[p+1+m] and module m-1's output at p (the target's, for
// m = 0). A row is final once t[p+1+m] is known to be right; rows beyond hold drafts. When drafts
// are rejected, rows that read them are stale, so each pass runs again from the first row that is
// not final in every module: positions [min(first new, last right token - (k-1)), frontier], or,
// in the padded form, the last k+1 positions, which always hold these. The target's hidden rows are
// kept for that (TargetRows). After every pass each module's cache equals a recomputation from
// scratch given the known tokens.
//
// A pass of depth d runs the first d modules only, as if k were d. The others stop where they are;
// a deeper pass later begins where the last of its modules stopped.
//
// The last module's output is read at the frontier only, where its draft is sampled: the rows
// before leave their cache entries and go no further.
#pragma once

#include <optional>
#include <vector>

#include "outrider/model/mla_model.h"
#include "outrider/speculate/draft_rows.h"
#include "outrider/speculate/draft_sampler.h"
#include "outrider/speculate/drafter.h"
#include "outrider/speculate/target_rows.h"

namespace outrider {

class MtpChainDrafter : public Drafter {
 public:
  /// Uses the first k modules of the model, 1 <= k <= model.num_mtp_modules(). draft_vocab: drafts
  /// are among so many first tokens; unset: all.
  MtpChainDrafter(MlaModel& model, KvCache& cache, int32_t k, int32_t num_slots, DraftForm form,
                  RowLife row_life = RowLife::kContent, std::optional<int32_t> draft_vocab = {});

  int32_t max_drafts() const override { return k_; }
  int32_t lookahead() const override { return 0; }
  void Propose(std::span<const DraftRequest> requests, int32_t depth,
               MatrixView<const float> hidden, MatrixView<int32_t> drafts) override;
  int32_t tokens_ahead() const override { return k_; }
  void Reset(int32_t slot, int32_t computed) override;

  /// Positions of a slot below it have final entries in module m.
  int32_t FinalEnd(int32_t slot, int32_t m) const {
    return slots_[static_cast<size_t>(slot)].next[static_cast<size_t>(m)];
  }

 private:
  struct SlotState {
    int32_t first = 0;            // positions below came from the prefix cache
    int32_t frontier = -1;        // last position whose target row was shown
    int32_t depth = 0;            // of the last pass
    int32_t last_known = -1;      // index of the last token that was known then
    std::vector<int32_t> drafts;  // what was put after it
    std::vector<int32_t> next;    // [k] each module's first position that is not final; falling
  };

  static int32_t LastRightToken(const SlotState& state, const DraftRequest& request);
  /// Takes a step's rows, and what its tokens say about the drafts before.
  void Show(const DraftRequest& request, MatrixView<const float> hidden);
  /// Takes modules past blocks that others took them through.
  void SkipFinal(const DraftRequest& request);
  /// The modules of the last pass read right tokens up to index `right`, and ran below `end`.
  void Advance(SlotState& state, const DraftRequest& request, int32_t right, int32_t end);
  DraftWindow WindowOf(const DraftRequest& request, int32_t depth) const;
  /// Runs, apart from the other requests, what was put off long ago, and what is put off of blocks
  /// from the prefix cache: no two windows of one pass hold the same entries.
  void CatchUp(const DraftRequest& request, int32_t depth);
  /// hidden: the rows of the step; those before it are in target_rows_.
  void Run(std::span<const DraftRequest> requests, int32_t depth, MatrixView<const float> hidden,
           MatrixView<int32_t> drafts);
  void GatherHidden(std::span<const DraftRequest> requests, MatrixView<const float> hidden);
  void Remember(const DraftRequest& request, int32_t depth, std::span<const int32_t> drafts);
  /// Token `index` of a request: a known one, or one of `drafts` after them.
  static int32_t TokenAt(const DraftRequest& request, const int32_t* drafts, int32_t index);
  void RunLastModule(int32_t m, std::span<const DraftRequest> requests, MatrixView<int32_t> drafts);
  /// Draft m of the requests that want it, from the frontier's row of `hidden`.
  void SampleDrafts(int32_t m, std::span<const DraftRequest> requests, const DraftRows& draft_rows,
                    MatrixView<const float> hidden, MatrixView<int32_t> drafts);

  MlaModel& model_;
  KvCache& cache_;
  int32_t k_;
  DraftForm form_;
  std::vector<SlotState> slots_;
  TargetRows target_rows_;
  DraftRows rows_;  // of all modules but the last
  std::vector<DraftWindow> windows_;
  std::vector<float> hidden_;  // [rows, hidden] of the pass
  DraftRows entry_rows_;       // of the last module: rows that leave their entries only,
  DraftRows output_rows_;      // and rows that a draft is sampled from
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> output_windows_;
  std::vector<float> last_hidden_;    // [rows, hidden] of the last pass
  std::vector<size_t> active_;        // requests that want this module's draft
  std::vector<int32_t> sample_rows_;  // the row of each one's draft
  DraftSampler sampler_;
};

}  // namespace outrider
