#include "outrider/sampling/acceptance.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/base/random.h"

namespace outrider {

namespace {

/// The index at which the running sum of `weights` passes u times their sum; the last one with any
/// weight when rounding leaves the target above.
int32_t Invert(std::span<const double> weights, double u) {
  double total = 0;
  for (const double w : weights) total += w;
  const double target = u * total;
  double sum = 0;
  int32_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last = static_cast<int32_t>(i);
    if (sum > target) break;
  }
  return last;
}

}  // namespace

std::vector<double> RatesOfLength(double length, int32_t k) {
  const bool possible = length >= 1 && length <= k + 1;  // false for NaN
  if (!possible) {
    throw InvalidArgument("synthetic_acceptance_length is {}: it must be in [1, {}]", length,
                          k + 1);
  }
  std::vector<double> rates;
  rates.reserve(static_cast<size_t>(k));
  for (int32_t j = 0; j < k; ++j) rates.push_back(std::clamp(length - 1 - j, 0.0, 1.0));
  return rates;
}

void CheckRates(std::span<const double> rates, int32_t k) {
  if (rates.size() != static_cast<size_t>(k)) {
    throw InvalidArgument(
        "synthetic_acceptance_rates holds {} rates: one for each of the {} drafts "
        "is needed",
        rates.size(), k);
  }
  double before = 1;
  for (const double rate : rates) {
    const bool falls = rate >= 0 && rate <= before;  // false for NaN
    if (!falls) {
      throw InvalidArgument(
          "synthetic_acceptance_rates holds {}: rates are in [0, 1] and never grow", rate);
    }
    before = rate;
  }
}

Judgement RejectionSampler::Judge(const SamplingParams& params, uint64_t seed, int64_t position,
                                  std::span<const float> logits, int32_t draft, const float* q) {
  processed_.resize(logits.size());
  sampler_.Process(params, logits, processed_);
  const double max = processed_[ArgMax(processed_)];
  p_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < p_.size(); ++i) {
    p_[i] = std::exp(static_cast<double>(processed_[i]) - max);
    total += p_[i];
  }
  for (double& p : p_) p /= total;

  const auto d = static_cast<size_t>(draft);
  const double q_draft = q != nullptr ? static_cast<double>(q[d]) : 1.0;
  const auto at = static_cast<uint64_t>(position);
  if (UniformDouble(seed, at, RandomStream::kAccept) * q_draft < p_[d]) return {draft, true};

  const double u = UniformDouble(seed, at, RandomStream::kResidual);
  if (q == nullptr) {
    p_[d] = 0;
  } else {
    for (size_t i = 0; i < p_.size(); ++i) p_[i] = std::max(p_[i] - static_cast<double>(q[i]), 0.0);
  }
  return {Invert(p_, u), false};
}

}  // namespace outrider
