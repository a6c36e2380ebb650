// Turns a drafter's hidden rows into draft tokens: the most likely ones, or draws.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/networks/network.h"
#include "outrider/sampling/sampler.h"
#include "outrider/speculate/drafter.h"

namespace outrider {

class DraftSampler {
 public:
  /// Drafts are among the first `vocab` tokens (1 .. the model's): only their rows of the head are
  /// read.
  explicit DraftSampler(int32_t vocab) : vocab_(vocab) {}

  /// Draft `step` of the requests named by `indices`, each from the hidden row in `rows` by the
  /// head of an MTP module: drafts.row(indices[i])[step] comes from hidden.row(rows[i]).
  void Sample(Network& model, int32_t module, MatrixView<const float> hidden,
              std::span<const int32_t> rows, std::span<const size_t> indices,
              std::span<const DraftRequest> requests, int32_t step, MatrixView<int32_t> drafts);

 private:
  /// Requests of one kind, the rows of their outputs and their drafts.
  struct Group {
    std::vector<size_t> indices;
    std::vector<int32_t> rows;
    std::vector<int32_t> tokens;
  };

  void Draw(Network& model, int32_t module, MatrixView<const float> hidden,
            std::span<const DraftRequest> requests, int32_t step);

  int32_t vocab_;
  Group likeliest_;  // the most likely token is taken
  Group drawn_;
  std::vector<float> logits_;      // [tile rows, vocab_]
  std::vector<Sampler> samplers_;  // one per thread
};

/// Draft `step` of a request with sampling parameters, from logits of the first tokens. With
/// draft_probs, writes row `step` of it, [vocab], vocab >= logits.size().
int32_t DrawDraft(Sampler& sampler, const DraftRequest& request, int32_t step,
                  std::span<const float> logits, int32_t vocab);

}  // namespace outrider
