#include "outrider/sampling/logprobs.h"

#include <algorithm>
#include <cmath>

namespace outrider {

PositionLogprobs LogprobRows::At(size_t row, int32_t token, size_t num_top) const {
  PositionLogprobs result;
  result.chosen = {token, logprobs[row]};
  result.rank = ranks[row];
  result.top.reserve(num_top);
  for (size_t i = row * columns; i < row * columns + num_top; ++i) {
    result.top.push_back({top_tokens[i], top_logprobs[i]});
  }
  return result;
}

PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t token, int32_t num_top) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };

  PositionLogprobs result;
  const float chosen = logits[static_cast<size_t>(token)];
  result.chosen = {token, logprob(chosen)};
  // Holds logits until the end; a heap whose front is the least likely.
  std::vector<TokenLogprob>& top = result.top;
  const auto more_likely = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token_id < b.token_id;
  };
  const size_t count = std::min(static_cast<size_t>(num_top), logits.size());
  top.reserve(count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const TokenLogprob candidate{static_cast<int32_t>(i), logits[i]};
    if (more_likely(candidate, {token, chosen})) ++result.rank;
    if (top.size() < count) {
      top.push_back(candidate);
      std::push_heap(top.begin(), top.end(), more_likely);
    } else if (count > 0 && more_likely(candidate, top.front())) {
      std::pop_heap(top.begin(), top.end(), more_likely);
      top.back() = candidate;
      std::push_heap(top.begin(), top.end(), more_likely);
    }
  }
  std::sort_heap(top.begin(), top.end(), more_likely);
  for (TokenLogprob& t : top) t.logprob = logprob(t.logprob);
  return result;
}

}  // namespace outrider
