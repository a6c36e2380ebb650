// Turns a drafter's hidden rows into draft tokens: the most likely ones, or draws.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/draft/drafter.h"
#include "outrider/networks/draft_model.h"

namespace outrider {

/// Makes the request for draft `step` of a request. max_drafts: of any request; vocab_size: of the
/// model.
DrawRequest DraftOf(const DraftRequest& request, int32_t step, int32_t max_drafts,
                    int32_t vocab_size);

class DraftSampler {
 public:
  /// Draft `step` of the requests named by `indices`, each from the hidden row in `rows` that
  /// module m made: drafts.row(indices[i])[step] comes from hidden.row(rows[i]). The drafts before
  /// it stand in `drafts` [requests, k]. A device may keep them (tokens_on_device.h).
  void Sample(DraftModel& model, int32_t m, Tensor hidden, std::span<const int32_t> rows,
              std::span<const size_t> indices, std::span<const DraftRequest> requests, int32_t step,
              MatrixView<TokenRef> drafts);

 private:
  std::vector<TokenRef> tokens_before_;
  std::vector<DrawRequest> draws_;
  std::vector<TokenRef> tokens_;
};

}  // namespace outrider
