// Turns a drafter's hidden rows into draft tokens. They are the most likely tokens, or are drawn
// from the drafter's own distribution, which rejection sampling needs later.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/model/mla_model.h"
#include "outrider/speculate/drafter.h"

namespace outrider {

class DraftSampler {
 public:
  /// Drafts are among the first `vocab` tokens (1 .. the model's): only their rows of the head are
  /// read.
  explicit DraftSampler(int32_t vocab) : vocab_(vocab) {}

  /// Draft `step` of the requests named by `indices`, each from the hidden row in `rows`:
  /// drafts.row(indices[i])[step] comes from hidden.row(rows[i]).
  void Sample(MlaModel& model, MatrixView<const float> hidden, std::span<const int32_t> rows,
              std::span<const size_t> indices, std::span<const DraftRequest> requests, int32_t step,
              MatrixView<int32_t> drafts);

 private:
  int32_t vocab_;
  std::vector<size_t> greedy_;        // requests whose most likely token is taken,
  std::vector<int32_t> greedy_rows_;  // the rows of their outputs
  std::vector<int32_t> tokens_;       // and their drafts
  std::vector<float> logits_;
};

/// Draws a token from softmax(logits / temperature), with noise of (seed, position) that the
/// sampler does not use. Writes the distribution to `probs`.
int32_t DrawDraft(std::span<const float> logits, float temperature, uint64_t seed, int64_t position,
                  std::span<float> probs);

}  // namespace outrider
