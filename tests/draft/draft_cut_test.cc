#include "outrider/draft/draft_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace outrider {
namespace {

using ::testing::ElementsAre;

/// Steps of one request: a second each, and so much more per draft.
StepTimes TimesOf(double per_draft, int32_t k) {
  StepTimes times;
  for (const int32_t n : {1, 8}) {
    times.batches.push_back({n, {}});
    for (int32_t d = 0; d <= k; ++d) times.batches.back().seconds.push_back(1 + per_draft * n * d);
  }
  return times;
}

std::vector<int32_t> Shortened(const StepTimes& times,
                               const std::vector<std::vector<float>>& confidences,
                               std::vector<int32_t> num_drafts) {
  DraftCut cut;
  cut.SetStepTimes(times);
  std::vector<float> all;
  for (const auto& row : confidences) all.insert(all.end(), row.begin(), row.end());
  cut.Shorten({all.data(), static_cast<int64_t>(confidences.size()),
               static_cast<int64_t>(confidences.front().size())},
              num_drafts);
  return num_drafts;
}

TEST(DraftCutTest, WithoutTimesNothingIsCut) {
  EXPECT_THAT(Shortened({}, {{0, 0, 0}}, {3}), ElementsAre(3));
}

TEST(DraftCutTest, FreeDraftsAreAllVerified) {
  EXPECT_THAT(Shortened(TimesOf(0, 3), {{0.01F, 0.01F, 0}, {1, 1, 1}}, {3, 2}), ElementsAre(3, 2));
}

TEST(DraftCutTest, ADraftPaysWhileItsChanceIsMoreThanItsShareOfTheTime) {
  // A draft adds a tenth of a second. Alone, with rate 1, one of chance 0.2 pays and 0.05 does not.
  EXPECT_THAT(Shortened(TimesOf(0.1, 3), {{0.2F, 0.2F, 1}}, {3}), ElementsAre(1));
  EXPECT_THAT(Shortened(TimesOf(0.1, 3), {{0.05F, 1, 1}}, {3}), ElementsAre(0));
  // A chance is that of all drafts before it, too.
  EXPECT_THAT(Shortened(TimesOf(0.1, 3), {{0.9F, 0.9F, 0.9F}}, {3}), ElementsAre(3));
  EXPECT_THAT(Shortened(TimesOf(0.1, 3), {{0.9F, 0.9F, 0.1F}}, {3}), ElementsAre(2));
}

TEST(DraftCutTest, AConfidenceThatIsNoNumberIsNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Shortened(TimesOf(0.1, 3), {{0.9F, nan, 0.9F}, {0.9F, 0.9F, 0.9F}}, {3, 3}),
              ElementsAre(1, 3));
}

TEST(DraftCutTest, RequestsShareTheStep) {
  EXPECT_THAT(Shortened(TimesOf(0.2, 3),
                        {{0.99F, 0.99F, 0.9F}, {0.1F, 0.1F, 0.1F}, {0.99F, 0.3F, 0.3F}}, {3, 3, 3}),
              ElementsAre(3, 0, 1));
}

TEST(DraftCutTest, IsTheBestOfAllLengths) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> chance(0, 1);
  for (int round = 0; round < 200; ++round) {
    const double per_draft = 0.02 + 0.3 * static_cast<double>(chance(random));
    const StepTimes times = TimesOf(per_draft, 3);
    std::vector<std::vector<float>> c(2, std::vector<float>(3));
    for (auto& row : c) {
      for (float& x : row) x = std::sqrt(chance(random));
    }
    const auto rate = [&](int32_t a, int32_t b) {
      double tokens = 2;
      double reached = 1;
      for (int32_t d = 0; d < a; ++d) tokens += reached *= double{c[0][static_cast<size_t>(d)]};
      reached = 1;
      for (int32_t d = 0; d < b; ++d) tokens += reached *= double{c[1][static_cast<size_t>(d)]};
      return tokens / times.Seconds(2, 0) / (1 + per_draft * (a + b) / times.Seconds(2, 0));
    };
    const std::vector<int32_t> got = Shortened(times, c, {3, 3});
    double best = 0;
    for (int32_t a = 0; a <= 3; ++a) {
      for (int32_t b = 0; b <= 3; ++b) best = std::max(best, rate(a, b));
    }
    EXPECT_NEAR(rate(got[0], got[1]), best, 1e-6) << got[0] << " " << got[1];
  }
}

}  // namespace
}  // namespace outrider
