// Chooses how many of its drafts each request verifies, so that the next step gives the most tokens
// per second. It needs a draft model that says how likely its drafts are right.
//
// With confidences c, draft d of a request gives a token with the chance P(d) = c(1) ... c(d). A
// step of n requests with d drafts each on average takes the seconds of StepTimes, interpolated for
// fractions. Drafts are taken in order of P, from all requests together, up to the number that
// gives the largest
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

  /// Whether it may cut drafts. If not, it reads no confidences.
  bool cuts() const { return !times_.batches.empty(); }

  /// Reduces num_drafts [requests] from the drafts that there are to those to verify. confidences
  /// [requests, most drafts]: how likely each draft is right if those before it are.
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
