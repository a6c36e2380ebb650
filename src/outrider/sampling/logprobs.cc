#include "outrider/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace outrider {

PositionLogprobs ComputeLogprobs(std::span<const float> logits, int32_t token, int32_t num_top) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](int32_t id) {
    return TokenLogprob{
        id, static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum)};
  };

  PositionLogprobs result{logprob(token), {}};
  const size_t count = std::min(static_cast<size_t>(num_top), logits.size());
  if (count > 0) {
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto more_likely = [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)];
      const float y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    };
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                      more_likely);
    for (size_t i = 0; i < count; ++i) result.top.push_back(logprob(ids[i]));
  }
  return result;
}

}  // namespace outrider
