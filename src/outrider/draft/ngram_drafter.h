// Prompt lookup (arXiv:2304.04487 and its descendants): the end of the text so far is looked up
// earlier in the same text, and what followed there is proposed. Needs no weights and no state.
#pragma once

#include "outrider/draft/drafter.h"

namespace outrider {

class NgramDrafter : public Drafter {
 public:
  /// Proposes k tokens when the last `min_match` tokens or more have occurred before; matches count
  /// up to `max_match` tokens. 1 <= min_match <= max_match, k >= 1.
  NgramDrafter(int32_t k, int32_t min_match, int32_t max_match);

  int32_t max_drafts() const override { return k_; }
  DrafterReach reach() const override { return {}; }
  bool keeps_state() const override { return false; }
  /// Proposes: Launch begins nothing.
  void Wait(Ticket /*ticket*/, std::span<const DraftRequest> requests,
            MatrixView<TokenRef> drafts) override {
    Propose(requests, /*depth=*/0, /*target=*/{}, drafts);
  }
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target,
               MatrixView<TokenRef> drafts) override;
  void Reset(int32_t, int32_t) override {}

 private:
  /// Where the text goes on after the longest earlier occurrence of its end (the latest of equally
  /// long ones): an index into `tokens`, or its size when there is none.
  size_t Continuation(std::span<const TokenRef> tokens) const;

  int32_t k_;
  size_t min_match_;
  size_t max_match_;
};

}  // namespace outrider
