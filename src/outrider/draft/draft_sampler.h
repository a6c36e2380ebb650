// Turns a drafter's hidden rows into draft tokens: the most likely ones, or draws.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/draft/drafter.h"
#include "outrider/networks/network.h"

namespace outrider {

class DraftSampler {
 public:
  /// Drafts are among the first `vocab` tokens (1 .. the model's): only their rows of the head are
  /// read.
  explicit DraftSampler(int32_t vocab) : vocab_(vocab) {}

  /// Draft `step` of the requests named by `indices`, each from the hidden row in `rows` by the
  /// head of an MTP module: drafts.row(indices[i])[step] comes from hidden.row(rows[i]).
  void Sample(Network& model, int32_t module, Tensor hidden, std::span<const int32_t> rows,
              std::span<const size_t> indices, std::span<const DraftRequest> requests, int32_t step,
              MatrixView<int32_t> drafts);

 private:
  int32_t vocab_;
  std::unique_ptr<StepSampler> sampler_;  // of the network's device
  std::vector<DrawRequest> draws_;
  std::vector<int32_t> tokens_;
};

}  // namespace outrider
