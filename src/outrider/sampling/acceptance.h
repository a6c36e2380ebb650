// When a draft counts as right. The default, sample and match, needs nothing from here; these are
// the two other rules, whose output depends on the drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/sampling/sampler.h"

namespace outrider {

enum class RejectionMethod {
  kMatch,      // a draft is right when it equals what was drawn from the target
  kStandard,   // rejection sampling: Leviathan et al., arXiv:2211.17192, algorithm 1
  kSynthetic,  // accepted at given rates, whatever the target says: for benchmarks
};

struct AcceptanceOptions {
  RejectionMethod method = RejectionMethod::kMatch;
  /// kSynthetic: the share of verify steps in which draft j and all before it are accepted, for
  /// each j; in [0, 1], never growing.
  std::vector<double> rates;
};

/// Rates of k drafts with the given mean acceptance length (tokens per step, 1 .. k + 1) and the
/// least variance: every step accepts floor(length - 1) drafts, some one more.
std::vector<double> RatesOfLength(double length, int32_t k);

/// Throws Error when the rates are not k falling numbers in [0, 1].
void CheckRates(std::span<const double> rates, int32_t k);

/// One token of a verification, and whether it is the draft.
struct Judgement {
  int32_t token = 0;
  bool accepted = false;
};

class RejectionSampler {
 public:
  /// The token for `position`, given the draft for it and q, the distribution that the draft was
  /// drawn from ([vocab]; null: it was certain). Accepts with probability p / q, else draws from
  /// max(p - q, 0); so the token follows p, the distribution that Sampler draws from. The draft,
  /// the test, this draw and the target's own at other positions must be independent of each other,
  /// so each has a stream of noise of its own. temperature > 0; the largest logit is finite.
  Judgement Judge(const SamplingParams& params, uint64_t seed, int64_t position,
                  std::span<const float> logits, int32_t draft, const float* q);

 private:
  Sampler sampler_;
  std::vector<float> processed_;
  std::vector<float> residual_;  // ln max(p - q, 0)
  std::vector<double> p_;
};

}  // namespace outrider
