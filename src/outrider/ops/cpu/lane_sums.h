// Sums over long rows of floats in a fixed order that compilers turn into vectors: sixteen chains
// side by side, added in halves at the end.
#pragma once

#include <cstdint>

namespace outrider::cpu {

inline constexpr int64_t kSumLanes = 16;

/// sum of a[i] * b[i] for i < n.
inline float LaneDot(const float* a, const float* b, int64_t n) {
  float lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int64_t l = 0; l < kSumLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (int64_t l = 0; i + l < n; ++l) lanes[l] += a[i + l] * b[i + l];
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace outrider::cpu
