// One module applied k times: DeepSeek-V3's MTP module as its paper's inference uses it, or the
// layer of an EAGLE-3 drafter.
//
// The first pass runs the module over the step's rows. Its inputs are the target's hidden rows and
// each row's next token. All rows write their cache entries; the frontier's row also gives the
// first draft. Each later pass runs one row per request, one position further, on the draft before
// and the module's own output. The entries that it writes beyond the frontier are approximate: the
// next first pass writes them again, from the target's hidden rows.
#pragma once

#include <memory>
#include <vector>

#include "outrider/draft/draft_memory.h"
#include "outrider/draft/module_drafter.h"
#include "outrider/draft/module_rows.h"

namespace outrider {

class RepeatedDrafter : public ModuleDrafter {
 public:
  /// Uses module 0 of the model.
  RepeatedDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
                  const ModuleDrafterOptions& options);

  static DrafterReach ReachOf(int32_t k) { return {.lookahead = k - 1, .tokens_ahead = 1}; }

 private:
  void RunPass(const Pass& pass) override;
  bool CanLaunch(int32_t /*depth*/) const override { return true; }
  void LaunchPass(const Pass& pass) override { RunFirstRows(pass, /*is_launched=*/true); }
  void FirstPass(const Pass& pass);
  /// is_launched: for LaunchPass. The device then moves the output row to the last right token.
  void RunFirstRows(const Pass& pass, bool is_launched);
  /// Runs the rows that draft `step` is drawn from, one for each request that wants it.
  void NextPass(const Pass& pass, int32_t step);

  ModuleRows first_rows_;
  DraftRows next_rows_;
  std::vector<DraftWindow> windows_;
  std::vector<size_t> active_;      // requests that want more drafts, in order
  std::vector<int32_t> rows_;       // the row of each one's last output
  std::vector<int32_t> from_rows_;  // where the output before was
  DraftMemory hidden_;              // a pass's inputs, then, from its start, its output
  DraftMemory next_hidden_;
  int64_t num_outputs_ = 0;
  RowCopies copies_;
};

}  // namespace outrider
