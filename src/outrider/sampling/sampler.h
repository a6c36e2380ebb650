// Draws a token from a row of logits. The noise is a function of (seed, position) alone, so the
// same row gives the same token whether it is decoded, verified, batched or computed again.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "outrider/sampling/sampling_params.h"

namespace outrider {

/// The logit of a token that may not be drawn.
inline constexpr float kForbidden = -std::numeric_limits<float>::infinity();

class Sampler {
 public:
  static constexpr int32_t kNoToken = -1;

  /// The token for `position`. Temperature 0: the largest logit, ties by lower id. Otherwise
  /// softmax(logits / temperature), cut by min_p, then top_k, then top_p, renormalised, and
  /// inverted at the uniform number of (seed, position), tokens in order of id, or of rank where
  /// cut. kNoToken when all are -infinity, or the largest is no finite number.
  int32_t Sample(const SamplingParams& params, uint64_t seed, int64_t position,
                 std::span<const float> logits);

  /// The logits of the distribution that Sample draws from: divided by the temperature, -infinity
  /// where cut; as they are at temperature 0. Writes all of `processed`, as long as `logits`; not
  /// for a row that is -infinity everywhere.
  void Process(const SamplingParams& params, std::span<const float> logits,
               std::span<float> processed);

 private:
  struct Candidate {
    float weight;  // exp((logit - max) / temperature)
    int32_t token;
  };

  int32_t SampleAll(float max, float inverse_temperature, double u, std::span<const float> logits);
  double Cut(const SamplingParams& params, float max, float inverse_temperature,
             std::span<const float> logits);

  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace outrider
