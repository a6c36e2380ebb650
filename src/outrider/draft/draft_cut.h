// How many of its drafts each request verifies, where a draft model says how likely they are right:
// those with which the next step gives the most tokens per second.
//
// With confidences c, draft d of a request gives a token with the chance P(d) = c(1) ... c(d). Of n
// requests with d drafts each on average a step takes the seconds of StepTimes, between its whole
// numbers on straight lines. Drafts are taken in order of P, from all requests together, and as
// many as give the largest
//
//   (n + sum of P) / seconds(n, drafts / n).
//
// Pure, and output never depends on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/draft/draft_length_policy.h"

namespace outrider {

class DraftCut {
 public:
  /// Cuts nothing while `times` has no batches.
  void SetStepTimes(StepTimes times) { times_ = std::move(times); }

  /// Whether it may cut drafts: else it reads no confidences.
  bool cuts() const { return !times_.batches.empty(); }

  /// num_drafts [requests]: the drafts that there are, and afterwards those to verify. confidences
  /// [requests, most drafts]: of each draft, if those before it are right.
  void Shorten(MatrixView<const float> confidences, std::span<int32_t> num_drafts);

 private:
  double Seconds(int32_t num_requests, double drafts_each) const;

  struct Draft {
    float chance;
    int32_t request;
  };

  StepTimes times_;
  std::vector<Draft> drafts_;
};

}  // namespace outrider
