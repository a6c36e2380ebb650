// The race that draws a token (gumbel_noise.h), by all threads of a cluster: over a row in shared
// memory or as it lies in memory.
#pragma once

#include "outrider/base/gumbel_noise.h"
#include "outrider/kernels/cuda/sampling/draw.h"
#include "outrider/kernels/cuda/sampling/draw_loads.cuh"

namespace outrider::cuda {

/// A thread's part in a race: what the tokens' values must beat, and the best key so far, of a
/// value and not of a logit.
class Racer {
 public:
  /// All lanes of a warp, with the same slot and position: by way of shuffles, so that the compiler
  /// knows and keeps the keys of Philox in uniform registers.
  __device__ Racer(const RequestSampling& slot, int64_t position)
      : seed_(__shfl_sync(~0u, slot.seed, 0)),
        position_(__shfl_sync(~0u, position, 0)),
        inverse_temperature_(InverseTemperature(slot.temperature)),
        most_(GumbelBound(0)) {}

  __device__ uint64_t winner() const { return winner_; }

  /// One token.
  __device__ __forceinline__ void Enter(int token, float logit) {
    const float score = RoundedMul(logit, inverse_temperature_);
    if (!Hopes(score)) return;
    Run(token, score, GumbelBits(seed_, position_, RandomStream::kTarget, token));
  }
  /// Tokens token + 8 j, whose words one call of Philox gives (GumbelWord). -infinity and NaN never
  /// win. All lanes of a warp.
  __device__ __forceinline__ void EnterFour(int token, const float (&logits)[4]) {
    float scores[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] = RoundedMul(logits[j], inverse_temperature_);
    if (best_ == -INFINITY) {  // in all lanes: the first tokens, of which the largest set the pace
      const std::array<uint32_t, 4> words =
          GumbelWords(seed_, position_, RandomStream::kTarget, GumbelBlock(token));
      float score = scores[0];
      int first = 0;
      uint32_t word = words[0];
#pragma unroll
      for (int j = 1; j < 4; ++j) {
        const bool larger = scores[j] > score || !(score > -INFINITY);
        score = larger ? scores[j] : score;
        first = larger ? j : first;
        word = larger ? words[j] : word;
      }
      Run(token + 8 * first, score, word);
      Share();
    }
    // First of all four at once: the largest score with the largest noise.
    const float largest = fmaxf(fmaxf(scores[0], scores[1]), fmaxf(scores[2], scores[3]));
    if (Hopes(largest)) {
      const std::array<uint32_t, 4> words =
          GumbelWords(seed_, position_, RandomStream::kTarget, GumbelBlock(token));
      const uint32_t least = min(min(words[0], words[1]), min(words[2], words[3]));
      if (RoundedAdd(largest, GumbelBound(least)) >= best_) {
#pragma unroll
        for (int j = 0; j < 4; ++j) Run(token + 8 * j, scores[j], words[j]);
      }
    }
    Share();
  }
  /// Every lane's best becomes the warp's. All lanes.
  __device__ __forceinline__ void Share() {
    __syncwarp();
    best_ = OfOrderKey(__reduce_max_sync(~0u, OrderKey(best_)));
  }

 private:
  /// False for -infinity and NaN.
  __device__ __forceinline__ bool Hopes(float score) const {
    return score > -INFINITY && RoundedAdd(score, most_) >= best_;
  }
  __device__ __forceinline__ void Run(int token, float score, uint32_t bits) {
    if (!(score > -INFINITY) || RoundedAdd(score, GumbelBound(bits)) < best_) return;
    const float value = RoundedAdd(score, Gumbel(bits));
    winner_ = max(winner_, TokenKey(value, token));
    best_ = fmaxf(best_, value);
  }

  uint64_t seed_;
  int64_t position_;
  float inverse_temperature_;
  float most_;  // no noise is larger
  float best_ = -INFINITY;
  uint64_t winner_ = 0;
};

/// The race over the row in shared memory: `entered`(token, value) says who takes part. Where a
/// list is kept, over the list alone.
template <typename Entered>
__device__ __forceinline__ uint64_t RunRace(const RequestSampling& slot, const DrawnRow& drawn,
                                            DrawRow& row, Entered entered, bool overflown = false) {
  Racer racer(slot, drawn.position);
  if (row.listed()) {
    row.ForCandidates([&](int, int token, float value) {
      if (entered(token, value)) racer.Enter(token, value);
    });
    return row.Max(racer.winner());
  }
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i0 = static_cast<int>(threadIdx.x) / 32 * 128; i0 < row.count();
       i0 += kDrawWarps * 128) {
    const int i = i0 + lane / 8 * 32 + lane % 8;
    float logits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = i + 8 * j;
      logits[j] = at < row.count() ? row.at(at) : -INFINITY;
      if (!entered(row.first() + at, logits[j])) logits[j] = -INFINITY;
    }
    racer.EnterFour(row.first() + i, logits);
  }
  return row.Max(overflown ? kOverflownKey : racer.winner());
}

/// The race over the row as it lies in memory, less what a mask forbids; kOverflownKey where a
/// logit overflows.
__device__ __forceinline__ uint64_t RaceInMemory(const RequestSampling& slot, const DrawnRow& drawn,
                                                 DrawRow& row) {
  Racer racer(slot, drawn.position);
  const int lane = threadIdx.x % 32;
  const int count = row.count();
  const float* from = drawn.logits + row.first();
  const uint32_t* mask = drawn.mask != nullptr ? drawn.mask + row.first() / 32 : nullptr;
  bool overflown = false;
  const int step = kDrawWarps * 128;
  const int start = static_cast<int>(threadIdx.x) / 32 * 128 + lane / 8 * 32 + lane % 8;
  struct Four {
    float logits[4];
    uint32_t allowed;
  };
  auto load = [&](int i) {
    Four four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four.logits[j] = i + 8 * j < count ? from[i + 8 * j] : -INFINITY;
    if (mask != nullptr) four.allowed = i < count ? mask[i / 32] >> lane % 8 : 0;
    return four;
  };
  // Two batches are on their way while one is looked at.
  Four next[2] = {load(start), load(start + step)};
#pragma unroll 1
  for (int i = start; i - lane / 8 * 32 - lane % 8 < count; i += step) {
    Four four = next[0];
    next[0] = next[1];
    next[1] = load(i + 2 * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) overflown |= Overflows(four.logits[j]);
    if (mask != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((four.allowed >> 8 * j & 1) == 0) four.logits[j] = -INFINITY;
      }
    }
    racer.EnterFour(drawn.first_token + row.first() + i, four.logits);
  }
  return row.Max(overflown ? kOverflownKey : racer.winner());
}

}  // namespace outrider::cuda
