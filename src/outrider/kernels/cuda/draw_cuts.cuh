// Which tokens of a row may be drawn under min-p, top-k and top-p (token_order.h), for a row in the
// shared memory of a cluster.
#pragma once

#include "outrider/kernels/cuda/draw.h"
#include "outrider/kernels/cuda/draw_row.cuh"

namespace outrider::cuda {

/// Classes of values by their distance below the largest, for FindBound: nine to a unit.
struct ByDistance {
  float max;
  float factor;
  __device__ __forceinline__ int operator()(float value) const {
    if (!(value > -INFINITY)) return kDrawBins - 1;
    const float below = RoundedMul(RoundedSub(max, value), factor);
    return static_cast<int>(fminf(below * 9.0f, kDrawBins - 1));
  }
};

/// Which tokens of a row may be drawn (token_order.h).
struct Kept {
  float max;
  float inverse_temperature;
  uint64_t least_weight;  // 0: no min_p
  uint64_t bound;         // keys from it on

  __device__ __forceinline__ uint64_t Weight(float value) const {
    return TokenWeight(RoundedMul(RoundedSub(value, max), inverse_temperature));
  }
  __device__ __forceinline__ bool operator()(int token, float value) const {
    if (!(value > -INFINITY)) return false;
    if (bound != 0 && TokenKey(value, token) < bound) return false;
    return least_weight == 0 || Weight(value) >= least_weight;
  }
};

/// Distances, in classes, at which Cut asks how much is above.
inline constexpr int kNumDistances = 4;
__device__ __forceinline__ constexpr int DistanceAt(int i) {
  return i == 0 ? 9 : i == 1 ? 27 : i == 2 ? 63 : kDrawBins - 1;
}

/// Lists the tokens from which `amount_of` adds up to needed_of(the sum over all), or a few more.
template <typename Amount, typename Needed>
__device__ __forceinline__ uint64_t ListFor(const ByDistance& classes, DrawRow& row,
                                            Amount amount_of, Needed needed_of) {
  uint64_t above[kNumDistances] = {};
  row.ForTokens([&](int, int token, float value) {
    const uint64_t amount = amount_of(token, value);
    const int distance = classes(value);
#pragma unroll
    for (int i = 0; i < kNumDistances; ++i) above[i] += distance <= DistanceAt(i) ? amount : 0;
  });
  row.Sum(above);
  const uint64_t needed = needed_of(above[kNumDistances - 1]);
  int farthest = kDrawBins - 1;
#pragma unroll
  for (int i = kNumDistances - 2; i >= 0; --i) {
    if (above[i] >= needed) farthest = DistanceAt(i);
  }
  row.List([&](int token, float value) {
    return classes(value) <= farthest && amount_of(token, value) != 0;
  });
  return needed;
}

__device__ __forceinline__ void Cut(const SlotSampling& slot, int vocab_size, DrawRow& row,
                                    Kept& kept) {
  const ByDistance classes = {kept.max, kept.inverse_temperature};
  const auto count = [&](int token, float value) -> uint64_t { return kept(token, value) ? 1 : 0; };
  const auto weight = [&](int token, float value) -> uint64_t {
    return kept(token, value) ? kept.Weight(value) : 0;
  };
  const auto limit = [&](uint64_t total) { return max(TopPLimit(total, slot.top_p), uint64_t{1}); };
  kept.least_weight = MinPWeight(slot.min_p);
  const bool cuts_k = slot.top_k > 0 && slot.top_k < vocab_size;
  if (cuts_k) {
    const auto k = static_cast<uint64_t>(slot.top_k);
    ListFor(classes, row, count, [&](uint64_t) { return k; });
    kept.bound = row.FindBound(k, count, classes);
  }
  if (slot.top_p < 1.0f) {
    uint64_t needed;
    if (cuts_k) {
      uint64_t total[1] = {0};
      row.ForCandidates([&](int, int token, float value) { total[0] += weight(token, value); });
      row.Sum(total);
      needed = limit(total[0]);
    } else {
      needed = ListFor(classes, row, weight, limit);
    }
    kept.bound = row.FindBound(needed, weight, classes);
  }
  if (!cuts_k && slot.top_p >= 1.0f) row.List(kept);
}

}  // namespace outrider::cuda
