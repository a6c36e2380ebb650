#include "outrider/sampling/token_race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "outrider/base/gumbel_noise.h"
#include "outrider/base/token_order.h"

namespace outrider {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t WinnerOfRow(const NoiseKey& key, float inverse, std::span<const float> logits) {
  TokenRace race(key);
  race.EnterRow(logits, inverse);
  return race.winner();
}

/// The definition, token by token.
int32_t WinnerByDefinition(const NoiseKey& key, float inverse, std::span<const float> logits) {
  uint64_t best = TokenKey(-kInf, 0);
  int32_t winner = TokenRace::kNoToken;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    const uint32_t bits = GumbelBits(key.seed, key.position, key.stream, token);
    const uint64_t value = TokenKey(logits[i] * inverse + Gumbel(bits), token);
    if (value <= best) continue;
    best = value;
    winner = token;
  }
  return winner;
}

TEST(TokenRaceTest, AnyRowInAnyOrderHasTheWinnerOfTheDefinition) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + random() % (round % 10 == 0 ? 5000 : 200));
    for (float& x : logits) {
      x = normal(random);
      if (random() % 8 == 0) x = random() % 4 == 0 ? std::nanf("") : -kInf;
    }
    const NoiseKey key{random(), static_cast<int64_t>(random()),
                       random() % 2 == 0 ? RandomStream::kTarget : RandomStream::kDraft};
    const float inverse = 0.5F + static_cast<float>(random() % 100);
    const int32_t winner = WinnerByDefinition(key, inverse, logits);
    ASSERT_EQ(WinnerOfRow(key, inverse, logits), winner) << round;
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    TokenRace race(key);
    for (const int32_t token : order) {
      race.Enter(token, logits[static_cast<size_t>(token)] * inverse);
    }
    ASSERT_EQ(race.winner(), winner) << round;
  }
}

TEST(TokenRaceTest, TheLowestOfEqualsWins) {
  // So large that noise is rounded away.
  std::vector<float> logits(100, 1e20F);
  logits[0] = logits[1] = 0;
  EXPECT_EQ(WinnerOfRow({1, 2}, 1, logits), 2);
  TokenRace race({1, 2});
  for (int32_t token = 99; token >= 0; --token)
    race.Enter(token, logits[static_cast<size_t>(token)]);
  EXPECT_EQ(race.winner(), 2);
}

TEST(TokenRaceTest, NobodyWinsWhereNothingIsAllowed) {
  for (const float x : {-kInf, std::nanf("")}) {
    EXPECT_EQ(WinnerOfRow({1, 2}, 1, std::vector<float>(70, x)), TokenRace::kNoToken);
  }
}

TEST(TokenRaceTest, SeedPositionAndStreamChangeTheNoise) {
  const std::vector<float> logits(2000, 0.0F);
  const int32_t winner = WinnerOfRow({1, 2}, 1, logits);
  EXPECT_EQ(WinnerOfRow({1, 2}, 1, logits), winner);
  EXPECT_NE(WinnerOfRow({2, 2}, 1, logits), winner);
  EXPECT_NE(WinnerOfRow({1, 3}, 1, logits), winner);
  EXPECT_NE(WinnerOfRow({1, 2 + (int64_t{1} << 32)}, 1, logits), winner);
  EXPECT_NE(WinnerOfRow({1, 2, RandomStream::kDraft}, 1, logits), winner);
}

}  // namespace
}  // namespace outrider
