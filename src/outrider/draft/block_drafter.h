// Drafts a block at once, as DSpark's stages do: the rows that follow a request's last known token
// run in one pass and see each other. The model's cache entries are made of the target's rows and
// depend on no later token. So they are final when the target's are, and nothing runs again.
//
// The rows of a block write entries behind the frontier. The next pass writes these again, from the
// target's rows, before they are read.
//
// Where the host reads a step's tokens later, Launch drafts before it has. What a row's entries are
// does not depend on which drafts were right, so those of all rows of the step are written. Those
// of rejected drafts lie behind the frontier, too: the block or the next pass writes there before
// anyone reads. The device moves the blocks, and the positions of their draws, behind the last
// right token. Launch leaves to Propose what the device cannot know: draws whose distributions the
// host wants, and where a block ends that has no place in the cache.
//
// On a GPU the draft of a step without prompt rows is one graph: taps, entries, blocks and draws.
// Entries of prompt rows are launched operation by operation, before the graph of blocks and draws.
#pragma once

#include <memory>
#include <optional>
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
  /// Whether blocks can run before the host knows where they begin.
  bool CanLaunch(std::span<const DraftRequest> requests) const;
  /// Lays out the target's rows: those that are right, or all of a step.
  void LayOutEntries(std::span<const DraftRequest> requests, bool all_rows);
  /// Lays out the blocks behind the frontiers. moves: of requests of Launch.
  void LayOutBlocks(std::span<const DraftRequest> requests, bool moves);
  /// The last known token, before a block.
  TokenRef LastToken(const DraftRequest& request) const;
  /// Rows of the target for the entries that were laid out.
  Tensor RowsOfEntries(std::span<const DraftRequest> requests, Tensor target);
  /// Runs what was laid out, and draws drafts a tile of blocks at a time.
  void Run(std::span<const DraftRequest> requests, Tensor target);
  /// Lays out the draws of blocks [first, first + count): all first drafts, then all second ones,
  /// and so on.
  void LayOutDraws(std::span<const DraftRequest> requests, size_t first, size_t count);
  /// Those of the draws that were laid out last, if drafts may be cut by them.
  void ReadConfidences();
  /// Hands out what Run has drawn for these requests, or some of them in their order.
  void Take(std::span<const DraftRequest> requests, MatrixView<TokenRef> drafts);

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
  bool moves_ = false;          // see LayOutBlocks
  // The draws of a tile, as BlockDraws has them.
  std::vector<int32_t> rows_;
  std::vector<TokenBefore> before_;
  std::vector<DrawRequest> draws_;
  std::vector<int32_t> steps_;
  std::vector<int32_t> moved_places_;
  std::vector<size_t> drawn_;        // by draw: its place in drafted_
  std::vector<int32_t> last_draws_;  // by block of the tile
  std::vector<TokenRef> tokens_;     // by draw
  std::vector<float> chances_;       // by draw
  // What Run has drawn.
  std::vector<int32_t> slots_;      // of its requests
  std::vector<TokenRef> drafted_;   // [requests, k]
  std::vector<float> confidences_;  // [requests, k], if drafts may be cut by them
  // Of the requests of Take that want drafts.
  std::vector<size_t> wanted_;             // their indices
  std::vector<int32_t> num_drafts_;        // [wanted]
  std::vector<float> wanted_confidences_;  // [wanted, k]
  // Calls of Launch that have begun: Wait follows the last one, or has followed it.
  Ticket last_launched_ = 0;
  Ticket last_waited_ = 0;
};

}  // namespace outrider
