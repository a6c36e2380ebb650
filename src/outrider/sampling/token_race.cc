#include "outrider/sampling/token_race.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "outrider/base/gumbel_noise.h"

namespace outrider {

namespace {

constexpr size_t kLanes = 8;                 // blocks of noise that are computed side by side
constexpr size_t kGroup = 4 * kLanes;        // consecutive tokens that have their words there
using Group = std::array<uint32_t, kGroup>;  // by token

/// GumbelBits of the tokens from `first` on, a multiple of kGroup. Loops over lanes, which
/// compilers turn into vector instructions.
Group GroupBits(const NoiseKey& key, size_t first) {
  const auto at = static_cast<uint64_t>(key.position);
  Group words;
  uint32_t* c0 = words.data();
  uint32_t* c1 = c0 + kLanes;
  uint32_t* c2 = c1 + kLanes;
  uint32_t* c3 = c2 + kLanes;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = static_cast<uint32_t>(at);
    c1[lane] = static_cast<uint32_t>(at >> 32);
    c2[lane] = static_cast<uint32_t>(key.stream);
    c3[lane] = GumbelBlock(static_cast<int32_t>(first + lane));
  }
  for (uint32_t round = 0; round < 10; ++round) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      PhiloxRound(key.seed, round, c0[lane], c1[lane], c2[lane], c3[lane]);
    }
  }
  return words;
}

}  // namespace

void TokenRace::EnterRow(std::span<const float> logits, float inverse_temperature) {
  size_t i = 0;
  for (; i + kGroup <= logits.size(); i += kGroup) {
    const Group bits = GroupBits(key_, i);
    std::array<float, kGroup> scores;
    // Few tokens can still win; a group is looked at again only if it has one.
    int hopes = 0;
    for (size_t j = 0; j < kGroup; ++j) {
      scores[j] = logits[i + j] * inverse_temperature;
      hopes |= static_cast<int>(scores[j] + GumbelBound(bits[j]) >= best_);
    }
    if (hopes == 0) continue;
    for (size_t j = 0; j < kGroup; ++j) Run(static_cast<int32_t>(i + j), scores[j], bits[j]);
  }
  for (; i < logits.size(); ++i) {
    Enter(static_cast<int32_t>(i), logits[i] * inverse_temperature);
  }
}

void TokenRace::Enter(int32_t token, float score) {
  // No noise is larger than that of no bits.
  if (score + GumbelBound(0) < best_) return;
  Run(token, score, GumbelBits(key_.seed, key_.position, key_.stream, token));
}

void TokenRace::Run(int32_t token, float score, uint32_t bits) {
  if (score + GumbelBound(bits) < best_) return;
  const float value = score + Gumbel(bits);
  if (value > best_ || (value == best_ && winner_ != kNoToken && token < winner_)) {
    best_ = value;
    winner_ = token;
  }
}

}  // namespace outrider
