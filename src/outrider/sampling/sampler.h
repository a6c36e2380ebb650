// Draws a token from a row of logits by the race of base/gumbel_noise.h, among the tokens that
// base/token_order.h keeps. The noise is a function of (seed, position, token id) alone, so the
// same row gives the same token whether it is decoded, verified, batched or computed again, here or
// on a GPU.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "outrider/sampling/sampling_params.h"
#include "outrider/sampling/token_race.h"

namespace outrider {

/// The logit of a token that may not be drawn.
inline constexpr float kForbidden = -std::numeric_limits<float>::infinity();

class Sampler {
 public:
  static constexpr int32_t kNoToken = TokenRace::kNoToken;

  /// The token that wins with this noise. Temperature 0: the largest logit, ties by lower id.
  /// Otherwise it follows softmax(logits / temperature), cut by min_p, then top_k, then top_p, and
  /// renormalised. kNoToken when all are -infinity, or the largest is no finite number.
  int32_t Sample(const SamplingParams& params, const NoiseKey& noise,
                 std::span<const float> logits);

  /// The logits of the distribution that Sample draws from: divided by the temperature, -infinity
  /// where cut; as they are at temperature 0. Writes all of `processed`, as long as `logits`; not
  /// for a row whose largest is no finite number.
  void Process(const SamplingParams& params, std::span<const float> logits,
               std::span<float> processed);

 private:
  struct Candidate {
    uint64_t key;     // TokenKey
    uint64_t weight;  // TokenWeight, where top_p asks for it

    bool operator<(const Candidate& other) const { return key > other.key; }  // the first in order
  };

  void Cut(const SamplingParams& params, float max, std::span<const float> logits);
  void CutTopK(size_t k);
  void CutTopP(uint64_t limit);
  void ScoreCandidates(const SamplingParams& params, std::span<const float> logits,
                       std::span<float> scores) const;

  std::vector<Candidate> candidates_;
  std::vector<float> scores_;  // [vocab]
};

}  // namespace outrider
