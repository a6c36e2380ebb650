// k modules in a chain, each reading the one before, as DeepSeek-V3 trains its MTP modules
// (arXiv:2412.19437 §2.2).
//
// Rows at the frontier read drafts, and are wrong if these are rejected. So each pass begins at the
// first row that is not final in the last of its modules, and runs positions
// [min(first new, last right token - (k-1)), frontier]. In the padded form it runs the last k+1
// positions, which always include these.
//
// A pass of depth d runs the first d modules, as if k were d. The output of the last of them is
// read at the frontier only, where its draft is drawn. Its rows before write their cache entries
// and go no further.
#pragma once

#include <memory>
#include <vector>

#include "outrider/draft/draft_memory.h"
#include "outrider/draft/module_drafter.h"
#include "outrider/draft/module_rows.h"

namespace outrider {

class ChainDrafter : public ModuleDrafter {
 public:
  /// Uses the first k modules of the model.
  ChainDrafter(std::unique_ptr<DraftModel> model, KvCache& cache,
               const ModuleDrafterOptions& options);

  static DrafterReach ReachOf(int32_t k, DraftForm form) {
    return {.rerun_tokens = form == DraftForm::kPadded ? k : k - 1, .tokens_ahead = k};
  }

 private:
  DraftWindow WindowOf(const DraftRequest& request, int32_t depth) const;
  void RunPass(const Pass& pass) override;
  /// A pass can begin with module 0, if others follow. The rows of rejected drafts go no further,
  /// and the entries that they write are written again before they are read.
  bool CanLaunch(int32_t depth) const override {
    return depth > 1 && options().form == DraftForm::kCompacted;
  }
  void LaunchPass(const Pass& pass) override;
  /// Lays out the rows of the pass in `rows`, with the tokens that module 0 reads.
  void LayOut(const Pass& pass, DraftRows& rows);
  /// rows [rows_] = what module 0 reads or, in a pass that has begun, what it has made.
  void GatherRows(const Pass& pass, Tensor rows);
  /// visit(w, p, row) of all rows of windows_, which `rows` lays out.
  template <typename Visit>
  void ForEachRow(const DraftRows& rows, Visit visit) const;
  /// Token `index` of a request: a known one, or one of `drafts` after them.
  static TokenRef TokenAt(const DraftRequest& request, const TokenRef* drafts, int32_t index);
  void RunLastModule(const Pass& pass, int32_t m);
  /// Draft m of the requests that want it, from the frontier's rows of `hidden`: row_of(i).
  template <typename RowOf>
  void DrawFromFrontier(const Pass& pass, int32_t m, Tensor hidden, RowOf row_of);

  DraftRows rows_;  // of all modules but the last
  std::vector<DraftWindow> windows_;
  DraftMemory hidden_;       // [rows, width] of the pass
  DraftRows launched_rows_;  // of module 0 in a pass that has begun, and its output
  DraftMemory launched_hidden_;
  ModuleRows last_rows_;  // of the last module
  DraftMemory last_hidden_;
  RowCopies copies_;
  std::vector<size_t> active_;      // requests that want this module's draft
  std::vector<int32_t> draw_rows_;  // the row of each one's draft
};

}  // namespace outrider
