#include "outrider/sampling/sampler.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/arg_max.h"
#include "outrider/base/random.h"

namespace outrider {

namespace {

bool Cuts(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
}

}  // namespace

int32_t Sampler::Sample(const SamplingParams& params, uint64_t seed, int64_t position,
                        std::span<const float> logits) {
  const size_t best = ArgMax(logits);
  const float max = logits[best];
  if (!std::isfinite(max)) return kNoToken;
  if (params.temperature == 0) return static_cast<int32_t>(best);
  const double u = UniformDouble(seed, static_cast<uint64_t>(position), RandomStream::kTarget);
  const float inverse_temperature = 1.0F / params.temperature;
  if (!Cuts(params)) return SampleAll(max, inverse_temperature, u, logits);
  const double target = u * Cut(params, max, inverse_temperature, logits);
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > target) return c.token;
  }
  return candidates_.back().token;
}

void Sampler::Process(const SamplingParams& params, std::span<const float> logits,
                      std::span<float> processed) {
  if (params.temperature == 0) {
    std::copy(logits.begin(), logits.end(), processed.begin());
    return;
  }
  const float inverse_temperature = 1.0F / params.temperature;
  if (!Cuts(params)) {
    std::transform(logits.begin(), logits.end(), processed.begin(),
                   [&](float x) { return x * inverse_temperature; });
    return;
  }
  const float max = logits[ArgMax(logits)];
  Cut(params, max, inverse_temperature, logits);
  std::fill(processed.begin(), processed.end(), kForbidden);
  for (const Candidate& c : candidates_) {
    const auto i = static_cast<size_t>(c.token);
    processed[i] = logits[i] * inverse_temperature;
  }
}

int32_t Sampler::SampleAll(float max, float inverse_temperature, double u,
                           std::span<const float> logits) {
  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((logits[i] - max) * inverse_temperature);
    total += weights_[i];
  }
  const double target = u * total;
  double sum = 0;
  int32_t last = 0;  // the last token with any weight: rounding may leave target just above the sum
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    sum += weights_[i];
    last = static_cast<int32_t>(i);
    if (sum > target) break;
  }
  return last;
}

// Leaves the tokens that may be drawn in candidates_, best first; returns the sum of their weights.
double Sampler::Cut(const SamplingParams& params, float max, float inverse_temperature,
                    std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = std::exp((logits[i] - max) * inverse_temperature);
    if (weight > 0 && weight >= params.min_p) {
      candidates_.push_back({weight, static_cast<int32_t>(i)});
    }
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    const auto end = candidates_.begin() + params.top_k;
    std::nth_element(candidates_.begin(), end, candidates_.end(), better);
    candidates_.erase(end, candidates_.end());
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  if (params.top_p < 1) {
    // The smallest set whose probability reaches top_p.
    const double limit = static_cast<double>(params.top_p) * total;
    double kept = 0;
    size_t n = 0;
    while (n < candidates_.size() && kept < limit) kept += candidates_[n++].weight;
    candidates_.resize(std::max<size_t>(n, 1));
    total = kept;
  }
  return total;
}

}  // namespace outrider
