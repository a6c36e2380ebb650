// A draft model whose pass makes the rows of a whole block of drafts at once: the rows that follow
// a request's last known token, and see each other. The tokens are then drawn one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/networks/draft_model.h"
#include "outrider/ops/block_drafts.h"

namespace outrider {

class BlockDraftModel : public DraftModel {
 public:
  using DraftModel::DraftModel;

  /// Rows of a block, the most drafts of a request. Its first row holds the last known token, the
  /// others noise_token(). A pass's outputs are blocks; its entries are rows of the target, as
  /// ReadTarget gives them.
  virtual int32_t block_size() const = 0;
  virtual int32_t noise_token() const = 0;

  /// Draws from rows of `hidden`, which Forward gave. tokens[i] = what draw i gave.
  virtual void DrawBlocks(Tensor hidden, const BlockDraws& draws, std::span<TokenRef> tokens) = 0;

  /// Forward, then DrawBlocks of pass.hidden: in one run, where the device records runs.
  virtual void ForwardAndDraw(const ModulePass& pass, KvCache& cache, const BlockDraws& draws,
                              std::span<TokenRef> tokens) = 0;

  /// chances[i] = the chance that draw i of the last DrawBlocks is right if those before it are.
  /// The host waits for the device.
  virtual void ReadConfidences(std::span<float> chances) = 0;

  /// The draws of one step.
  void Draw(const DraftDraws& draws, std::span<TokenRef> tokens) override {
    const auto count = static_cast<int32_t>(draws.rows.size());
    std::vector<TokenBefore> before;
    for (const TokenRef token : draws.tokens_before) before.push_back({token});
    DrawBlocks(draws.hidden, {draws.rows, before, draws.requests, {&count, 1}}, tokens);
  }
};

}  // namespace outrider
