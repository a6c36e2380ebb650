// Drafts a block at once, as DSpark's stages do: the rows that follow a request's last known token
// run in one pass and see each other. The model's cache entries are made of the target's rows and
// depend on no later token. So they are final when the target's are, and nothing runs again.
//
// The rows of a block write entries behind the frontier. The next pass writes these again, from the
// target's rows, before they are read.
//
// What a row's entries are does not depend on which drafts were right. So where the host reads a
// step's tokens later, Launch writes those of all rows of the step. Those of rejected drafts lie
// behind the frontier, too: the block or the next pass writes there before anyone reads. Blocks
// follow at once where all drafts are the likeliest tokens: the device moves them behind the last
// right token. Else their draws depend on positions, which the host has to know.
//
// On a GPU the draft of a step without prompt rows is two graphs then, the entries and the blocks
// with their draws, as the target's tokens are not awaited in between. Without Launch it is one.
// What the entries are made of (ReadTarget) is launched before, operation by operation.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/draft/draft_cut.h"
#include "outrider/draft/draft_memory.h"
#include "outrider/draft/draft_rows.h"
#include "outrider/draft/draft_sampler.h"
#include "outrider/draft/drafter.h"
#include "outrider/networks/block_draft_model.h"

namespace outrider {

struct BlockDrafterOptions {
  int32_t k = 1;  // most drafts per request, up to the model's block size
  DraftForm form = DraftForm::kCompacted;
};

class BlockDrafter : public Drafter {
 public:
  BlockDrafter(std::unique_ptr<BlockDraftModel> model, KvCache& cache,
               const BlockDrafterOptions& options);

  int32_t max_drafts() const override { return options_.k; }
  std::span<const int32_t> taps() const override { return model_->taps(); }
  double busy_seconds() const override { return model_->busy_seconds(); }
  ReplayCounts replay_counts() const override { return model_->replay_counts(); }
  DrafterReach reach() const override { return ReachOf(model_->block_size()); }
  static DrafterReach ReachOf(int32_t block_size) { return {.lookahead = block_size}; }
  bool launch_finishes_entries() const override { return true; }
  std::optional<Ticket> Launch(std::span<const DraftRequest> requests, int32_t depth,
                               Tensor target) override;
  void Wait(Ticket ticket, std::span<const DraftRequest> requests,
            MatrixView<TokenRef> drafts) override;
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
               MatrixView<TokenRef> drafts) override;
  void Reset(int32_t, int32_t) override {}
  /// Drafts that do not pay by the model's confidences are left out from now on.
  void SetStepTimes(const StepTimes& times) override { cut_.SetStepTimes(times); }

 private:
  /// How many tokens of a request its pages have room for, in the group with the least room.
  int32_t PlaceInCache(std::span<const std::vector<int32_t>> block_tables) const;
  /// Lays out the target's rows: those that are right, or all of a step.
  void LayOutEntries(std::span<const DraftRequest> requests, bool all_rows);
  /// Whether blocks can run before the host knows where they begin.
  bool CanLaunchBlocks(std::span<const DraftRequest> requests) const;
  /// Lays out the blocks behind the frontiers. moves: of requests of Launch.
  void LayOutBlocks(std::span<const DraftRequest> requests, bool moves);
  /// The last known token, before a block.
  TokenRef LastToken(const DraftRequest& request) const;
  /// What the entries that were laid out are made of.
  Tensor ReadEntries(std::span<const DraftRequest> requests, Tensor target);
  /// Runs the blocks that were laid out, whose entries are there.
  void RunBlocks(std::span<const DraftRequest> requests, MatrixView<TokenRef> drafts);
  /// Runs the pass, then draws drafts a tile of requests at a time.
  void DrawBlocks(std::span<const DraftRequest> requests, const ModulePass& pass,
                  MatrixView<TokenRef> drafts);
  /// Lays out the draws of requests [first, first + count) of blocks_: all first drafts, then all
  /// second ones, and so on.
  void LayOutDraws(std::span<const DraftRequest> requests, size_t first, size_t count);

  std::unique_ptr<BlockDraftModel> model_;
  KvCache& cache_;
  BlockDrafterOptions options_;
  DraftRows entry_rows_;
  DraftRows block_rows_;
  std::unique_ptr<StepInputs> no_rows_;
  DraftMemory previous_;
  DraftMemory hidden_;
  DraftCut cut_;
  RowCopies copies_;
  std::vector<DraftWindow> entry_windows_;
  std::vector<DraftWindow> block_windows_;
  std::vector<size_t> blocks_;  // requests that want drafts
  // The draws of a tile, as BlockDraws has them.
  std::vector<int32_t> rows_;
  std::vector<TokenBefore> before_;
  std::vector<DrawRequest> draws_;
  std::vector<int32_t> steps_;
  std::vector<std::pair<size_t, int32_t>> drawn_;  // by draw: index in blocks_, step
  std::vector<int32_t> last_draws_;                // by request of the tile
  std::vector<TokenRef> tokens_;                   // by draw
  std::vector<float> chances_;                     // by draw
  std::vector<float> confidences_;                 // [blocks, k]
  std::vector<int32_t> num_drafts_;                // [blocks]
  bool moves_ = false;                             // see LayOutBlocks
  // Calls of Launch: Wait follows the last one, or has followed it.
  Ticket last_launched_ = 0;
  Ticket last_waited_ = 0;
  std::vector<int32_t> launched_slots_;    // of its requests, if it has launched blocks
  std::vector<TokenRef> launched_drafts_;  // [launched requests, k]
};

}  // namespace outrider
