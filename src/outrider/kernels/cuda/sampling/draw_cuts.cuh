// Which tokens of a row may be drawn under min-p, top-k and top-p (token_order.h), for a row in the
// shared memory of a cluster.
#pragma once

#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/kernels/cuda/sampling/draw_row.cuh"

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
  uint64_t least_weight = 0;     // 0: no min_p
  float last_value = -INFINITY;  // the last token in order: its logit
  int last_token = 0;            // ... and id

  __device__ __forceinline__ void SetBound(uint64_t bound) {
    if (bound == 0) return;
    last_value = OfOrderKey(static_cast<uint32_t>(bound >> 32));
    last_token = KeyToken(bound);
  }
  __device__ __forceinline__ uint64_t Weight(float value) const {
    return TokenWeight(RoundedMul(RoundedSub(value, max), inverse_temperature));
  }
  /// -infinity and NaN are never kept.
  __device__ __forceinline__ bool operator()(int token, float value) const {
    const bool in_order =
        value > last_value || (value == last_value && token <= last_token && value > -INFINITY);
    return in_order && (least_weight == 0 || Weight(value) >= least_weight);
  }
};

/// Distances, in classes, at which FindBoundInBand asks how much is above.
__device__ __forceinline__ constexpr int DistanceAt(int i) {
  constexpr int kDistances[kDrawSums] = {5, 14, 27, 45, 81, kDrawBins - 1};
  return kDistances[i];
}

/// DrawRow::FindBound with what needed_of(the amount of all) says is needed: finds by one pass over
/// all tokens between which two distances the bound lies, and lists the tokens in between.
template <typename Amount, typename Needed>
__device__ __forceinline__ uint64_t FindBoundInBand(const ByDistance& classes, DrawRow& row,
                                                    Amount amount_of, Needed needed_of) {
  uint64_t above[kDrawSums] = {};
  row.ForTokens([&](int, int token, float value) {
    const uint64_t amount = amount_of(token, value);
    const int distance = classes(value);
#pragma unroll
    for (int i = 0; i < kDrawSums; ++i) above[i] += distance <= DistanceAt(i) ? amount : 0;
  });
  row.Sum(above);
  uint64_t needed = needed_of(above[kDrawSums - 1]);
  if (above[kDrawSums - 1] < needed) return 0;
  int nearer = -1;  // the band's tokens are farther than that
  int farthest = DistanceAt(0);
  uint64_t nearer_amount = 0;
#pragma unroll
  for (int i = 0; i + 1 < kDrawSums; ++i) {
    if (above[i] >= needed) break;
    nearer = DistanceAt(i);
    nearer_amount = above[i];
    farthest = DistanceAt(i + 1);
  }
  needed -= nearer_amount;
  const auto band_amount = [&](int token, float value) -> uint64_t {
    const int distance = classes(value);
    return distance > nearer && distance <= farthest ? amount_of(token, value) : 0;
  };
  row.List([&](int token, float value) { return band_amount(token, value) != 0; });
  return row.FindBound(needed, band_amount, classes);
}

/// DrawRow::FindBound for the first `k` tokens in order among those that are kept. As many of all
/// threads' largest are no smaller than the bound that their classes give, so no more than a few
/// tokens are listed, the first k among them.
__device__ __forceinline__ uint64_t FindBoundOfCount(uint64_t k, const ByDistance& classes,
                                                     DrawRow& row, const Kept& kept) {
  int nearest = kDrawBins;
  row.ForTokens([&](int, int token, float value) {
    if (kept(token, value)) nearest = min(nearest, classes(value));
  });
  const int farthest = row.ClassOfCount(nearest, k);
  row.List(
      [&](int token, float value) { return classes(value) <= farthest && kept(token, value); });
  return row.FindBound(
      k, [&](int token, float value) -> uint64_t { return kept(token, value) ? 1 : 0; }, classes);
}

/// Leaves in `kept` what is kept, and lists it, with a few more.
__device__ __forceinline__ void Cut(const RequestSampling& slot, int vocab_size, DrawRow& row,
                                    Kept& kept) {
  const ByDistance classes = {kept.max, kept.inverse_temperature};
  const auto weight = [&](int token, float value) -> uint64_t {
    return kept(token, value) ? kept.Weight(value) : 0;
  };
  const auto limit = [&](uint64_t total) { return max(TopPLimit(total, slot.top_p), uint64_t{1}); };
  kept.least_weight = MinPWeight(slot.min_p);
  const bool cuts_k = slot.top_k > 0 && slot.top_k < vocab_size;
  const bool cuts_p = slot.top_p < 1.0f;
  if (cuts_k) {
    kept.SetBound(FindBoundOfCount(static_cast<uint64_t>(slot.top_k), classes, row, kept));
  }
  if (cuts_p && cuts_k) {
    uint64_t total[1] = {0};
    row.ForCandidates([&](int, int token, float value) { total[0] += weight(token, value); });
    row.Sum(total);
    kept.SetBound(row.FindBound(limit(total[0]), weight, classes));
  } else if (cuts_p) {
    kept.SetBound(FindBoundInBand(classes, row, weight, limit));
  }
  if (!cuts_k) row.List(kept);
}

}  // namespace outrider::cuda
