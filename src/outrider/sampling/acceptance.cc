#include "outrider/sampling/acceptance.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"
#include "outrider/base/error.h"
#include "outrider/base/random.h"

namespace outrider {

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

  // Drawn from max(p - q, 0), by the race of its logarithms.
  residual_.resize(logits.size());
  for (size_t i = 0; i < p_.size(); ++i) {
    const double q_i = q != nullptr ? static_cast<double>(q[i]) : (i == d ? 1.0 : 0.0);
    residual_[i] = static_cast<float>(std::log(std::max(p_[i] - q_i, 0.0)));
  }
  const NoiseKey noise{seed, position, RandomStream::kResidual};
  TokenRace race(noise);
  race.EnterRow(residual_, 1);
  if (race.winner() != TokenRace::kNoToken) return {race.winner(), false};
  // p and q differ by rounding alone.
  TokenRace whole(noise);
  whole.EnterRow(processed_, 1);
  return {whole.winner(), false};
}

}  // namespace outrider
