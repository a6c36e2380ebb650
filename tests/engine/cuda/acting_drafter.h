// A drafter of a rank that acts in the middle of a step: the other ranks wait for it in the next.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "outrider/draft/ngram_drafter.h"

namespace outrider::cuda {

/// Acts once, in the fourth step that drafts.
class ActingDrafter : public NgramDrafter {
 public:
  explicit ActingDrafter(std::function<void()> act) : NgramDrafter(3, 2, 5), act_(std::move(act)) {}
  void Propose(std::span<const DraftRequest> requests, int32_t depth, Tensor target_hidden,
               MatrixView<TokenRef> drafts) override {
    NgramDrafter::Propose(requests, depth, target_hidden, drafts);
    if (++calls_ == 4) act_();
  }

 private:
  std::function<void()> act_;
  int calls_ = 0;
};

}  // namespace outrider::cuda
