#include "outrider/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace outrider {
namespace {

const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F, -30.0F};

std::map<int32_t, int> Histogram(const SamplingParams& params, int draws) {
  Sampler sampler;
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.Sample(params, 7, i, kLogits)];
  return counts;
}

/// Chi-square of the counts against probabilities; tokens without a probability must not occur.
double ChiSquare(const std::map<int32_t, int>& counts, const std::map<int32_t, double>& expected,
                 int draws) {
  double sum = 0;
  for (const auto& [token, count] : counts) EXPECT_TRUE(expected.contains(token)) << token;
  for (const auto& [token, p] : expected) {
    const auto it = counts.find(token);
    const double difference = (it == counts.end() ? 0 : it->second) - p * draws;
    sum += difference * difference / (p * draws);
  }
  return sum;
}

std::map<int32_t, double> Softmax(float temperature, const std::vector<int32_t>& tokens) {
  std::map<int32_t, double> p;
  double sum = 0;
  for (const int32_t t : tokens) {
    p[t] = std::exp(kLogits[static_cast<size_t>(t)] / temperature);
    sum += p[t];
  }
  for (auto& [token, value] : p) value /= sum;
  return p;
}

TEST(SamplerTest, GreedyTakesTheFirstOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler;
  EXPECT_EQ(sampler.Sample(params, 1, 5, kLogits), 1);
}

TEST(SamplerTest, FollowsTheDistribution) {
  constexpr int kDraws = 100000;
  // 99.9 % points of chi-square with 4, 2 and 1 degrees of freedom: 18.5, 13.8, 10.8.
  SamplingParams params;
  EXPECT_LT(ChiSquare(Histogram(params, kDraws), Softmax(1, {0, 1, 2, 3, 4}), kDraws), 18.5);
  params.temperature = 0.5F;
  EXPECT_LT(ChiSquare(Histogram(params, kDraws), Softmax(0.5F, {0, 1, 2, 3, 4}), kDraws), 18.5);
  params = {};
  params.top_k = 3;
  EXPECT_LT(ChiSquare(Histogram(params, kDraws), Softmax(1, {1, 3, 4}), kDraws), 13.8);
  params = {};
  params.min_p = 0.5F;
  EXPECT_LT(ChiSquare(Histogram(params, kDraws), Softmax(1, {1, 3}), kDraws), 10.8);
  params = {};
  params.top_p = 0.8F;  // the two best have 0.757
  EXPECT_LT(ChiSquare(Histogram(params, kDraws), Softmax(1, {1, 3, 4}), kDraws), 13.8);
}

TEST(SamplerTest, TopPKeepsAtLeastOne) {
  SamplingParams params;
  params.top_p = 1e-6F;
  EXPECT_EQ(Histogram(params, 100), (std::map<int32_t, int>{{1, 100}}));
}

TEST(SamplerTest, NothingLeftToDraw) {
  const std::vector<float> logits(5, -std::numeric_limits<float>::infinity());
  SamplingParams params;
  EXPECT_EQ(Sampler().Sample(params, 1, 1, logits), Sampler::kNoToken);
  params.top_k = 2;
  EXPECT_EQ(Sampler().Sample(params, 1, 1, logits), Sampler::kNoToken);
  params.temperature = 0;
  EXPECT_EQ(Sampler().Sample(params, 1, 1, logits), Sampler::kNoToken);
}

TEST(SamplerTest, NoiseDependsOnSeedAndPositionOnly) {
  const SamplingParams params;
  Sampler a;
  Sampler b;
  for (int i = 0; i < 10; ++i) (void)b.Sample(params, 9, i, kLogits);  // history does not matter
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(a.Sample(params, 3, i, kLogits), b.Sample(params, 3, i, kLogits));
    different += a.Sample(params, 3, i, kLogits) != a.Sample(params, 4, i, kLogits) ? 1 : 0;
  }
  EXPECT_GT(different, 20);
}

}  // namespace
}  // namespace outrider
