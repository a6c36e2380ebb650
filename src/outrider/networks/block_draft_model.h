// A draft model whose pass makes the rows of a whole block of drafts at once: the rows that follow
// a request's last known token, and see each other. The tokens are then drawn one after the other.
#pragma once

#include <cstdint>
#include <span>

#include "outrider/networks/draft_model.h"

namespace outrider {

class BlockDraftModel : public DraftModel {
 public:
  using DraftModel::DraftModel;

  /// Rows of a block, the most drafts of a request. Its first row holds the last known token, the
  /// others noise_token(). A pass's outputs are blocks; its entries are rows of the target, as
  /// ReadTarget gives them.
  virtual int32_t block_size() const = 0;
  virtual int32_t noise_token() const = 0;

  /// Draws follow from rows[i] of `hidden`, which Forward gave: computes for all of them what does
  /// not depend on drafts. Until the next call a row of DraftDraws is an index into `rows`. Gives
  /// their logits without what the token before a draft adds, [rows.size(), vocab_size()].
  virtual Tensor StartDraws(Tensor hidden, std::span<const int32_t> rows) = 0;

  /// The chance that each draft of the last Draw is right if those before it are.
  virtual std::span<const float> confidences() const = 0;
};

}  // namespace outrider
