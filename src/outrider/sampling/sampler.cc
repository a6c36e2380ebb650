#include "outrider/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "outrider/base/arg_max.h"
#include "outrider/base/gumbel_noise.h"
#include "outrider/base/token_order.h"

namespace outrider {

namespace {

bool Cuts(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
}

}  // namespace

int32_t Sampler::Sample(const SamplingParams& params, const NoiseKey& noise,
                        std::span<const float> logits) {
  TokenRace race(noise);
  if (params.temperature > 0 && !Cuts(params)) {
    race.EnterRow(logits, InverseTemperature(params.temperature));
    const int32_t winner = race.winner();
    // An infinite logit wins.
    const bool drawn = winner != kNoToken && std::isfinite(logits[static_cast<size_t>(winner)]);
    return drawn ? winner : kNoToken;
  }
  const size_t best = ArgMax(logits);
  const float max = logits[best];
  if (!std::isfinite(max)) return kNoToken;
  if (params.temperature == 0) return static_cast<int32_t>(best);
  Cut(params, max, logits);
  if (candidates_.size() > logits.size() / 8) {  // faster, with the same winner
    scores_.resize(logits.size());
    ScoreCandidates(params, logits, scores_);
    race.EnterRow(scores_, 1);
    return race.winner();
  }
  const float inverse_temperature = InverseTemperature(params.temperature);
  for (const Candidate& c : candidates_) {
    const int32_t token = KeyToken(c.key);
    race.Enter(token, logits[static_cast<size_t>(token)] * inverse_temperature);
  }
  return race.winner();
}

void Sampler::Process(const SamplingParams& params, std::span<const float> logits,
                      std::span<float> processed) {
  if (params.temperature == 0) {
    std::copy(logits.begin(), logits.end(), processed.begin());
    return;
  }
  if (!Cuts(params)) {
    const float inverse_temperature = InverseTemperature(params.temperature);
    std::transform(logits.begin(), logits.end(), processed.begin(),
                   [&](float x) { return x * inverse_temperature; });
    return;
  }
  Cut(params, logits[ArgMax(logits)], logits);
  ScoreCandidates(params, logits, processed);
}

// The candidates' logits divided by the temperature, -infinity elsewhere.
void Sampler::ScoreCandidates(const SamplingParams& params, std::span<const float> logits,
                              std::span<float> scores) const {
  const float inverse_temperature = InverseTemperature(params.temperature);
  std::fill(scores.begin(), scores.end(), kForbidden);
  for (const Candidate& c : candidates_) {
    const auto i = static_cast<size_t>(KeyToken(c.key));
    scores[i] = logits[i] * inverse_temperature;
  }
}

// Leaves the tokens that may be drawn in candidates_, in no order. `max` is the largest logit.
void Sampler::Cut(const SamplingParams& params, float max, std::span<const float> logits) {
  const float inverse_temperature = InverseTemperature(params.temperature);
  const auto below_max = [&](float x) { return (x - max) * inverse_temperature; };
  const uint64_t least = MinPWeight(params.min_p);
  // Below this min_p cuts whatever the weight's last bits are.
  const float far_below = std::log(params.min_p) - 0.001F;
  const auto k = static_cast<size_t>(params.top_k);
  const size_t room = k > 0 ? std::max<size_t>(4 * k, 1024) : logits.size() + 1;
  float lowest = std::numeric_limits<float>::lowest();  // what is lower is cut
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    const bool in = x >= lowest;  // false for NaN
    if (!in) continue;
    if (params.min_p > 0) {
      const float d = below_max(x);
      if (d < far_below || TokenWeight(d) < least) continue;
    }
    candidates_.push_back({TokenKey(x, static_cast<int32_t>(i)), 0});
    if (candidates_.size() == room) {
      CutTopK(k);
      lowest = logits[static_cast<size_t>(KeyToken(candidates_.back().key))];
    }
  }
  if (k > 0 && k < candidates_.size()) CutTopK(k);
  if (params.top_p < 1) {
    uint64_t total = 0;
    for (Candidate& c : candidates_) {
      c.weight = TokenWeight(below_max(logits[static_cast<size_t>(KeyToken(c.key))]));
      total += c.weight;
    }
    CutTopP(TopPLimit(total, params.top_p));
  }
}

// Keeps the first k candidates in order, the last of them at the end.
void Sampler::CutTopK(size_t k) {
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(candidates_.begin(), last, candidates_.end());
  candidates_.erase(last + 1, candidates_.end());
}

// Keeps the shortest beginning, in order, whose weights sum to `limit`, which is no more than that
// of all: halves what is in doubt until one candidate is left, without sorting the rest.
void Sampler::CutTopP(uint64_t limit) {
  auto first = candidates_.begin();  // what comes before is kept, and its weights sum to `sum`
  auto last = candidates_.end();     // what comes from there on is not
  uint64_t sum = 0;
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
    uint64_t half = 0;
    for (auto c = first; c != middle; ++c) half += c->weight;
    if (sum + half >= limit) {
      last = middle;
    } else {
      sum += half;
      first = middle;
    }
  }
  candidates_.erase(last, candidates_.end());
}

}  // namespace outrider
