// The race that draws a token (base/gumbel_noise.h), on the host.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "outrider/base/random.h"

namespace outrider {

/// What the noise of a draw is a function of, beside the tokens' ids.
struct NoiseKey {
  uint64_t seed = 0;
  int64_t position = 0;
  RandomStream stream = RandomStream::kTarget;
};

class TokenRace {
 public:
  static constexpr int32_t kNoToken = -1;

  explicit TokenRace(const NoiseKey& key) : key_(key) {}

  /// Enters every token of a row with the score logits[token] * inverse_temperature.
  void EnterRow(std::span<const float> logits, float inverse_temperature);

  /// Enters one token. Scores of -infinity and NaN never win.
  void Enter(int32_t token, float score);

  /// The one with the largest score plus noise, the lowest token among equals; kNoToken where none
  /// was above -infinity.
  int32_t winner() const { return winner_; }

 private:
  void Run(int32_t token, float score, uint32_t bits);

  NoiseKey key_;
  float best_ = -std::numeric_limits<float>::infinity();
  int32_t winner_ = kNoToken;
};

}  // namespace outrider
