// What an indexer chooses by its scores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace outrider {

/// The `top_k` highest, the lower number among equals; rising.
template <typename Score>
std::vector<int32_t> HighestOf(const std::vector<Score>& scores, int32_t top_k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(top_k)));
  std::ranges::sort(order);
  return order;
}

}  // namespace outrider
