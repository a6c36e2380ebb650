#include "outrider/sampling/verifier.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

/// Row j prefers token 10 + j.
std::vector<float> Rows(int64_t rows, int64_t vocab) {
  std::vector<float> logits(static_cast<size_t>(rows * vocab), 0.0F);
  for (int64_t j = 0; j < rows; ++j) logits[static_cast<size_t>(j * vocab + 10 + j)] = 5;
  return logits;
}

VerifiedTokens Verify(const std::vector<int32_t>& drafts, const SamplingParams& params) {
  constexpr int64_t kVocab = 32;
  const auto rows = static_cast<int64_t>(drafts.size()) + 1;
  auto logits = Rows(rows, kVocab);
  VerifiedTokens result;
  Verifier().Verify(params, 3, 100, {logits.data(), rows, kVocab}, drafts, &result);
  return result;
}

TEST(VerifierTest, AcceptsDraftsUntilTheFirstMismatch) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Verify({10, 11, 12}, params).tokens, (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(Verify({10, 11, 12}, params).num_accepted, 3);
  EXPECT_EQ(Verify({10, 9, 12}, params).tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(Verify({10, 9, 12}, params).num_accepted, 1);
  EXPECT_EQ(Verify({1, 11, 12}, params).tokens, (std::vector<int32_t>{10}));
  EXPECT_EQ(Verify({}, params).tokens, (std::vector<int32_t>{10}));
}

TEST(VerifierTest, EmittedTokensDoNotDependOnTheDrafts) {
  SamplingParams params;
  params.temperature = 1.5F;
  const auto first = Verify({}, params).tokens.at(0);
  for (const int32_t draft : {0, 5, 10, 31}) {
    EXPECT_EQ(Verify({draft, draft}, params).tokens.at(0), first);
  }
}

TEST(VerifierTest, OneLogprobPerEmittedToken) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 2;
  const VerifiedTokens result = Verify({10, 9}, params);
  ASSERT_EQ(result.logprobs.size(), 2U);
  EXPECT_EQ(result.logprobs[1].chosen.token_id, 11);
  EXPECT_EQ(result.logprobs[1].top.size(), 2U);
}

}  // namespace
}  // namespace outrider
