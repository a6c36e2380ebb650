#include "outrider/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace outrider {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F, -30.0F};

std::vector<float> NormalLogits(size_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(count);
  for (float& x : logits) x = normal(random);
  return logits;
}

/// The distribution that the sampling fields ask for, in float64; 0 for tokens that are cut. None
/// where a threshold is so near that float32 may see it on the other side.
std::optional<std::vector<double>> Distribution(const SamplingParams& params,
                                                const std::vector<float>& logits) {
  constexpr double kNear = 1e-6;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  const double max = logits[order[0]];
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - max) / params.temperature);
  size_t kept = 0;
  while (kept < order.size() && p[order[kept]] >= params.min_p) ++kept;
  const auto near = [&](size_t i) {
    return params.min_p > 0 && std::abs(p[order[i]] - params.min_p) < kNear;
  };
  if (near(kept - 1) && kept > 1) return {};
  if (kept < order.size() && near(kept)) return {};
  if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += p[order[i]];
  if (params.top_p < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < kept && (n == 0 || sum < params.top_p * total)) {
      sum += p[order[n++]];
      if (std::abs(sum - params.top_p * total) < kNear * total) return {};
    }
    kept = n;
    total = sum;
  }
  std::vector<double> result(p.size(), 0.0);
  for (size_t i = 0; i < kept; ++i) result[order[i]] = p[order[i]] / total;
  return result;
}

/// Pearson's statistic over its limit: above 1 once in 10^5 sound runs. Tokens that are expected
/// less than ten times count as one. Draws are at positions 0, 1, ... of one seed, or at one
/// position of many seeds.
double ChiSquareOverLimit(const SamplingParams& params, const std::vector<float>& logits,
                          uint64_t seed, bool many_seeds) {
  constexpr int kDraws = 100000;
  const std::vector<double> expected = Distribution(params, logits).value();
  std::vector<int> counts(logits.size(), 0);
  Sampler sampler;
  for (int i = 0; i < kDraws; ++i) {
    const NoiseKey noise =
        many_seeds ? NoiseKey{seed + static_cast<uint64_t>(i), 17} : NoiseKey{seed, i};
    ++counts[static_cast<size_t>(sampler.Sample(params, noise, logits))];
  }
  double statistic = 0;
  int cells = 0;
  double rare_expected = 0;
  int rare = 0;
  const auto add = [&](int count, double mean) {
    statistic += (count - mean) * (count - mean) / mean;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * kDraws;
    if (mean >= 10) {
      add(counts[i], mean);
    } else {
      EXPECT_TRUE(mean > 0 || counts[i] == 0) << "token " << i << " is cut";
      rare += counts[i];
      rare_expected += mean;
    }
  }
  if (rare_expected >= 10) add(rare, rare_expected);
  // Wilson and Hilferty's approximation of the chi-square distribution's point.
  const double f = std::max(cells - 1, 1);
  const double root = 1 - 2 / (9 * f) + 4.265 * std::sqrt(2 / (9 * f));
  return statistic / (f * root * root * root);
}

TEST(SamplerTest, GreedyTakesTheFirstOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Sampler().Sample(params, {1, 5}, kLogits), 1);
}

struct Fields {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

class SamplerDistributionTest : public testing::TestWithParam<Fields> {
 protected:
  static SamplingParams Params() {
    SamplingParams params;
    params.temperature = GetParam().temperature;
    params.top_k = GetParam().top_k;
    params.top_p = GetParam().top_p;
    params.min_p = GetParam().min_p;
    return params;
  }
};

TEST_P(SamplerDistributionTest, DrawsFollowIt) {
  // The seeds are fixed, so a pass stays a pass.
  EXPECT_LT(ChiSquareOverLimit(Params(), kLogits, 7, false), 1);
  EXPECT_LT(ChiSquareOverLimit(Params(), kLogits, 1'000'000, true), 1);
  EXPECT_LT(ChiSquareOverLimit(Params(), NormalLogits(150, 1.5F, 3), 1234567890123, false), 1);
  EXPECT_LT(ChiSquareOverLimit(Params(), std::vector<float>(77, -3.5F), 0, true), 1);
}

INSTANTIATE_TEST_SUITE_P(Fields, SamplerDistributionTest,
                         testing::Values(Fields{}, Fields{.temperature = 0.4F},
                                         Fields{.temperature = 2}, Fields{.top_k = 3},
                                         Fields{.min_p = 0.3F}, Fields{.top_p = 0.8F},
                                         Fields{.temperature = 1.3F, .top_k = 5, .top_p = 0.9F},
                                         Fields{.top_k = 40, .top_p = 0.71F, .min_p = 0.02F}));

TEST(SamplerTest, TheStatisticSeesAnotherDistribution) {
  // Draws at temperature 1.05 instead of 1.
  SamplingParams params;
  std::vector<float> logits = kLogits;
  for (float& x : logits) x /= 1.05F;
  const std::vector<double> wrong = Distribution(params, logits).value();
  const std::vector<double> right = Distribution(params, kLogits).value();
  double statistic = 0;
  for (size_t i = 0; i < 5; ++i) {
    statistic += 1e5 * (wrong[i] - right[i]) * (wrong[i] - right[i]) / right[i];
  }
  EXPECT_GT(statistic, 28.5);  // the limit that ChiSquareOverLimit has for five cells
}

// Any fields and rows: what is kept, and with which logits, is what float64 says.
TEST(SamplerTest, CutsAreThoseOfFloat64) {
  std::mt19937 random(11);
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  Sampler sampler;
  int compared = 0;
  for (int round = 0; round < 4000; ++round) {
    SamplingParams params;
    params.temperature = uniform(0.1F, 2);
    if (random() % 2 == 0) params.top_k = 1 + static_cast<int32_t>(random() % 60);
    if (random() % 2 == 0) params.top_p = uniform(0.01F, 1);
    if (random() % 2 == 0) params.min_p = uniform(0, 0.3F);
    std::vector<float> logits =
        NormalLogits(1 + random() % (round % 8 == 0 ? 6000 : 300), uniform(0.1F, 4), random());
    // Equals, of which the lower ids come first.
    for (float& x : logits) {
      if (random() % 3 == 0) x = std::round(x * 2) / 2;
    }
    const auto expected = Distribution(params, logits);
    if (!expected) continue;
    ++compared;
    std::vector<float> processed(logits.size(), -1);
    sampler.Process(params, logits, processed);
    for (size_t i = 0; i < logits.size(); ++i) {
      if ((*expected)[i] == 0) {
        ASSERT_EQ(processed[i], kForbidden) << round << ": token " << i;
      } else {
        ASSERT_NEAR(processed[i], logits[i] / params.temperature, 1e-5 * std::abs(processed[i]))
            << round << ": token " << i;
      }
    }
    const int32_t token = sampler.Sample(params, {random(), round}, logits);
    ASSERT_GT((*expected)[static_cast<size_t>(token)], 0) << round;
  }
  EXPECT_GT(compared, 3800);
}

// Noise goes with a token's id, not with its rank: the winner of all wins among fewer.
TEST(SamplerTest, AWinnerThatIsNotCutStillWins) {
  const std::vector<float> logits = NormalLogits(500, 2, 5);
  SamplingParams all;
  SamplingParams few;
  few.top_k = 20;
  std::vector<float> processed(logits.size());
  Sampler sampler;
  sampler.Process(few, logits, processed);
  int kept = 0;
  for (int i = 0; i < 1000; ++i) {
    const int32_t winner = sampler.Sample(all, {3, i}, logits);
    if (processed[static_cast<size_t>(winner)] == kForbidden) continue;
    ++kept;
    ASSERT_EQ(sampler.Sample(few, {3, i}, logits), winner);
  }
  EXPECT_GT(kept, 300);
}

TEST(SamplerTest, TopPKeepsAtLeastOne) {
  SamplingParams params;
  for (const float top_p : {1e-6F, 1e-12F}) {
    params.top_p = top_p;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(Sampler().Sample(params, {7, i}, kLogits), 1);
  }
}

TEST(SamplerTest, TemperaturesNearZeroAreGreedy) {
  SamplingParams params;
  for (const float temperature : {1e-45F, 1e-30F, 1e-6F}) {
    params.temperature = temperature;
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(Sampler().Sample(params, {7, i}, std::vector<float>{-2.5F, 3, 3.01F, 2}), 2);
    }
  }
}

TEST(SamplerTest, NothingLeftToDraw) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float x : {-kInfinity, kInfinity, kNan}) {
    std::vector<float> logits(40, x);
    if (x == kInfinity) logits[3] = 1;
    for (const Fields& fields : {Fields{}, Fields{.top_k = 2}, Fields{.temperature = 0}}) {
      SamplingParams params;
      params.temperature = fields.temperature;
      params.top_k = fields.top_k;
      EXPECT_EQ(Sampler().Sample(params, {1, 1}, logits), Sampler::kNoToken) << x;
    }
  }
}

TEST(SamplerTest, WhatWasDrawnBeforeDoesNotMatter) {
  SamplingParams params;
  params.top_p = 0.9F;
  Sampler a;
  Sampler b;
  for (int i = 0; i < 10; ++i) (void)b.Sample(params, {9, i}, kLogits);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(a.Sample(params, {3, i}, kLogits), b.Sample(params, {3, i}, kLogits));
    different += a.Sample(params, {3, i}, kLogits) != a.Sample(params, {4, i}, kLogits) ? 1 : 0;
  }
  EXPECT_GT(different, 20);
}

// A seed's tokens are part of the contract.
TEST(SamplerTest, TokensAreWhatTheyWere) {
  const std::vector<float> logits = {0.1F, 0.9F, -0.4F, 1.5F, 0.3F, 1.1F, -2.0F, 0.7F, 1.4F, 0.2F};
  SamplingParams all;
  SamplingParams cut;
  cut.temperature = 0.7F;
  cut.top_p = 0.8F;
  std::vector<int32_t> tokens;
  std::vector<int32_t> cut_tokens;
  for (int i = 0; i < 16; ++i) {
    tokens.push_back(Sampler().Sample(all, {42, i}, logits));
    cut_tokens.push_back(Sampler().Sample(cut, {42, i}, logits));
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 1, 5, 5, 7, 8, 5, 5, 8, 8, 5, 8, 8, 3, 4, 8}));
  EXPECT_EQ(cut_tokens, (std::vector<int32_t>{1, 1, 5, 5, 7, 8, 5, 5, 8, 8, 5, 8, 8, 3, 3, 8}));
}

}  // namespace
}  // namespace outrider
