#include "outrider/sampling/sampler.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/random.h"

namespace outrider {

int32_t Sampler::Sample(const SamplingParams& params, uint64_t seed, int64_t position,
                        std::span<const float> logits) {
  const auto max = std::max_element(logits.begin(), logits.end());
  if (params.temperature == 0) return static_cast<int32_t>(max - logits.begin());
  const double u = UniformDouble(seed, static_cast<uint64_t>(position), RandomStream::kTarget);
  const float inverse_temperature = 1.0F / params.temperature;
  const bool cut = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  return cut ? SampleCut(params, *max, inverse_temperature, u, logits)
             : SampleAll(*max, inverse_temperature, u, logits);
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

int32_t Sampler::SampleCut(const SamplingParams& params, float max, float inverse_temperature,
                           double u, std::span<const float> logits) {
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
  const double target = u * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > target) return c.token;
  }
  return candidates_.back().token;
}

}  // namespace outrider
