// One MTP module applied k times (DeepSeek-V3/R1 inference style).
//
// The first pass runs the module over the step's rows, with the target's hidden rows and each row's
// next token: all of them leave their cache entries, the frontier's row also gives the first draft.
// The passes after it run one row per request, one position further each, on the draft before and
// the module's own output. What those passes write beyond the frontier is approximate and is
// written again, from target hidden rows, by the next first pass. At depth 0 no pass runs; the next
// first pass begins where the last one ended.
#pragma once

#include <optional>
#include <vector>

#include "outrider/model/mla_model.h"
#include "outrider/speculate/draft_rows.h"
#include "outrider/speculate/draft_sampler.h"
#include "outrider/speculate/drafter.h"
#include "outrider/speculate/target_rows.h"

namespace outrider {

class MtpDrafter : public Drafter {
 public:
  /// Uses module 0 of the model. draft_vocab: drafts are among so many first tokens; unset: all.
  MtpDrafter(MlaModel& model, KvCache& cache, int32_t k, int32_t num_slots, DraftForm form,
             RowLife row_life = RowLife::kContent, std::optional<int32_t> draft_vocab = {});

  int32_t max_drafts() const override { return k_; }
  int32_t lookahead() const override { return k_ - 1; }
  void Propose(std::span<const DraftRequest> requests, int32_t depth,
               MatrixView<const float> hidden, MatrixView<int32_t> drafts) override;
  int32_t tokens_ahead() const override { return 1; }
  void Reset(int32_t slot, int32_t computed) override {
    slots_[static_cast<size_t>(slot)] = {.first = computed, .frontier = computed - 1};
  }

  /// Positions of a slot below it have final entries.
  int32_t FinalEnd(int32_t slot) const { return slots_[static_cast<size_t>(slot)].next; }

 private:
  struct SlotState {
    int32_t first = 0;      // positions below came from the prefix cache
    int32_t frontier = -1;  // last position whose target row was shown
    int32_t next = 0;       // first position whose entry is not final
  };

  void Show(const DraftRequest& request, MatrixView<const float> hidden);
  /// Takes the module past blocks that others took it through.
  void SkipFinal(const DraftRequest& request);
  /// Every entry up to `frontier` is final.
  void Remember(const DraftRequest& request, int32_t frontier);
  /// Runs, apart from the other requests, what was put off long ago, and what is put off of blocks
  /// from the prefix cache: no two windows of one pass hold the same entries.
  void CatchUp(const DraftRequest& request);
  void FirstPass(std::span<const DraftRequest> requests, MatrixView<const float> hidden);
  void NextPass(std::span<const DraftRequest> requests, int32_t step, MatrixView<int32_t> drafts);
  /// The part of hidden_ that a pass leaves its output in.
  MatrixView<float> OutputRows();
  void SampleDrafts(int32_t step, std::span<const DraftRequest> requests,
                    MatrixView<int32_t> drafts);

  MlaModel& model_;
  KvCache& cache_;
  int32_t k_;
  DraftForm form_;
  std::vector<SlotState> slots_;
  TargetRows target_rows_;
  DraftRows entry_rows_;  // of the first pass: rows that leave their entries only
  DraftRows rows_;        // rows that a draft is sampled from
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> windows_;
  std::vector<size_t> active_;        // requests that want more drafts, in order
  std::vector<int32_t> active_rows_;  // the row of each one's last output
  std::vector<float> hidden_;         // a pass's inputs, then, from its start, its output
  std::vector<float> next_hidden_;
  DraftSampler sampler_;
};

}  // namespace outrider
