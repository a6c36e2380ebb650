#include "outrider/sampling/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace outrider {
namespace {

TEST(LogprobsTest, IsTheLogSoftmax) {
  const std::vector<float> logits = {1, 3, 2, 3, -4};
  const PositionLogprobs result = ComputeLogprobs(logits, 2, 3);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x);
  EXPECT_EQ(result.chosen.token_id, 2);
  EXPECT_NEAR(result.chosen.logprob, 2 - std::log(sum), 1e-6);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].token_id, 1);  // a tie with 3
  EXPECT_EQ(result.top[1].token_id, 3);
  EXPECT_EQ(result.top[2].token_id, 2);
  // lm_eval compares these floats exactly.
  EXPECT_EQ(result.top[2].logprob, result.chosen.logprob);
  EXPECT_EQ(result.rank, 3);
  EXPECT_EQ(ComputeLogprobs(logits, 1, 0).rank, 1);
  EXPECT_EQ(ComputeLogprobs(logits, 3, 0).rank, 2);
  EXPECT_EQ(ComputeLogprobs(logits, 4, 0).rank, 5);
}

TEST(LogprobsTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1000, 999};
  EXPECT_NEAR(ComputeLogprobs(logits, 0, 0).chosen.logprob, -std::log1p(std::exp(-1.0)), 1e-6);
}

TEST(LogprobsTest, ForbiddenTokensHaveNone) {
  const float forbidden = -std::numeric_limits<float>::infinity();
  const PositionLogprobs result =
      ComputeLogprobs(std::vector<float>{forbidden, 2, forbidden}, 1, 2);
  EXPECT_EQ(result.chosen.logprob, 0);
  EXPECT_EQ(result.top[1].token_id, 0);
  EXPECT_EQ(result.top[1].logprob, forbidden);
}

TEST(LogprobsTest, MoreTopThanTokens) {
  EXPECT_EQ(ComputeLogprobs(std::vector<float>{1, 2}, 0, 20).top.size(), 2U);
}

}  // namespace
}  // namespace outrider
