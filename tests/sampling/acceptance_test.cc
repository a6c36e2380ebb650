#include "outrider/sampling/acceptance.h"

#include <gtest/gtest.h>

#include <limits>

#include "outrider/base/error.h"
#include "outrider/sampling/verifier.h"

namespace outrider {
namespace {

TEST(AcceptanceTest, RatesOfALengthHaveTheLeastVariance) {
  EXPECT_EQ(RatesOfLength(1, 3), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(RatesOfLength(4, 3), (std::vector<double>{1, 1, 1}));
  const std::vector<double> rates = RatesOfLength(2.6, 3);
  EXPECT_EQ(rates[0], 1);
  EXPECT_NEAR(rates[1], 0.6, 1e-12);
  EXPECT_EQ(rates[2], 0);
  EXPECT_THROW(RatesOfLength(0.5, 3), Error);
  EXPECT_THROW(RatesOfLength(4.5, 3), Error);
}

TEST(AcceptanceTest, RatesAreCheckedAgainstK) {
  const auto check = [](std::vector<double> rates) { CheckRates(rates, 2); };
  check({1, 0});
  EXPECT_THROW(check({0.5}), Error);
  EXPECT_THROW(check({0.5, 0.6}), Error);
  EXPECT_THROW(check({1.5, 0.6}), Error);
  EXPECT_THROW(check({0.5, -0.1}), Error);
}

// Where p is nowhere above q, though p / q of the draft is below 1, the two differ by rounding: a
// token that the target allows must come all the same.
TEST(AcceptanceTest, ADraftRefusedByRoundingIsReplacedByTheTargetsDraw) {
  const std::vector<float> logits = {-std::numeric_limits<float>::infinity(), 1, 1, 1, 1};
  const std::vector<float> q = {0, 0.5F, 0.5F, 0.5F, 0.5F};
  std::vector<int> counts(5, 0);
  RejectionSampler sampler;
  for (int run = 0; run < 4000; ++run) {
    const Judgement judgement =
        sampler.Judge({}, static_cast<uint64_t>(run), 3, logits, 2, q.data());
    if (!judgement.accepted) ++counts.at(static_cast<size_t>(judgement.token));
  }
  EXPECT_EQ(counts[0], 0);
  for (size_t i = 1; i < 5; ++i) EXPECT_NEAR(counts[i], 500, 100) << i;
}

TEST(AcceptanceTest, SyntheticAcceptsAtTheGivenRates) {
  const std::vector<double> rates = {0.8, 0.4, 0.1};
  Verifier verifier(LogprobsMode::kRaw, {.method = RejectionMethod::kSynthetic, .rates = rates});
  SamplingParams params;
  params.temperature = 0;
  const std::vector<int32_t> tokens = {0};
  const std::vector<int32_t> drafts = {1, 2, 3};
  const std::vector<float> logits(4 * 5, 0.0F);
  constexpr int kRuns = 20000;
  std::vector<int> accepted(3, 0);
  VerifiedTokens result;
  for (int run = 0; run < kRuns; ++run) {
    verifier.Verify({.params = &params,
                     .seed = static_cast<uint64_t>(run),
                     .tokens = tokens,
                     .prompt_length = 1,
                     .logits = {logits.data(), 4, 5},
                     .drafts = drafts},
                    &result);
    for (int32_t j = 0; j < result.num_accepted; ++j) ++accepted[static_cast<size_t>(j)];
  }
  for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(accepted[j] / double{kRuns}, rates[j], 0.012);
}

}  // namespace
}  // namespace outrider
