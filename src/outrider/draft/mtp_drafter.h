// One MTP module applied k times (DeepSeek-V3/R1 inference style).
//
// The first pass runs the module over the step's rows. Its inputs are the target's hidden rows and
// each row's next token. All rows write their cache entries; the frontier's row also gives the
// first draft. Each later pass runs one row per request, one position further, on the draft before
// and the module's own output. The entries that it writes beyond the frontier are approximate: the
// next first pass writes them again, from the target's hidden rows. At depth 0 no pass runs, and
// the module falls behind; the next first pass begins where the last one ended.
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

class MtpDrafter : public Drafter {
 public:
  /// Uses module 0 of the model. draft_vocab: drafts are among so many first tokens; unset: all.
  MtpDrafter(Network& model, KvCache& cache, int32_t k, int32_t num_slots, DraftForm form,
             KeptRows kept_rows = KeptRows::kAll, std::optional<int32_t> draft_vocab = {});

  int32_t max_drafts() const override { return k_; }
  int32_t lookahead() const override { return k_ - 1; }
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor hidden,
               MatrixView<int32_t> drafts) override;
  int32_t rerun_tokens() const override { return 0; }
  int32_t tokens_ahead() const override { return 1; }
  void Reset(int32_t slot, int32_t computed) override {
    slots_[static_cast<size_t>(slot)] = {.first = computed, .frontier = computed - 1};
  }

  /// Positions of a slot below it have final entries.
  int32_t FinalEnd(int32_t slot) const { return slots_[static_cast<size_t>(slot)].next; }

 private:
  struct SlotState {
    int32_t first = 0;      // positions below came from the prefix cache
    int32_t frontier = -1;  // last position that a step has computed
    int32_t next = 0;       // first position whose entry is not final
  };

  void TakeStep(const DraftRequest& request);
  /// Moves `next` past blocks that the module has finished for other requests.
  void SkipFinished(const DraftRequest& request);
  /// A pass has made every entry up to `frontier` final.
  void FinishPass(const DraftRequest& request, int32_t frontier);
  /// Runs the module for one request that is many rows behind, or behind in blocks from the prefix
  /// cache. Requests may share these blocks, so they do not run in one pass with other requests: no
  /// entry is written twice in a pass.
  void CatchUp(const DraftRequest& request);
  void FirstPass(std::span<const DraftRequest> requests, Tensor hidden);
  void NextPass(std::span<const DraftRequest> requests, int32_t step, MatrixView<int32_t> drafts);
  /// The part of hidden_ that holds a pass's output.
  Tensor OutputRows();
  void SampleDrafts(int32_t step, std::span<const DraftRequest> requests,
                    MatrixView<int32_t> drafts);

  Network& model_;
  KvCache& cache_;
  int32_t k_;
  DraftForm form_;
  std::vector<SlotState> slots_;
  TargetHiddenRows target_rows_;
  DraftRows entry_rows_;  // of the first pass: rows that leave their entries only
  DraftRows rows_;        // rows that a draft is sampled from
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> windows_;
  std::vector<size_t> active_;        // requests that want more drafts, in order
  std::vector<int32_t> from_rows_;    // where the output before was
  std::vector<int32_t> active_rows_;  // the row of each one's last output
  DraftMemory hidden_;                // a pass's inputs, then, from its start, its output
  DraftMemory next_hidden_;
  RowCopies copies_;
  DraftSampler sampler_;
};

}  // namespace outrider
