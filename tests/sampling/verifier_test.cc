// Draws and verification of rows. One case per rule makes it long.
#include "outrider/sampling/verifier.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "outrider/sampling/token_mask.h"
#include "tests/sampling/random_params.h"

namespace outrider {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// A request over given rows: rows[p] are the logits of its p-th output token.
class Request {
 public:
  Request(SamplingParams params, std::vector<int32_t> prompt, std::vector<std::vector<float>> rows,
          LogprobsMode mode = LogprobsMode::kRaw)
      : params_(std::move(params)),
        prompt_length_(prompt.size()),
        tokens_(std::move(prompt)),
        rows_(std::move(rows)),
        verifier_(mode) {
    if (LogitsProcessors::Needed(params_)) {
      const std::vector<int32_t> eos = {kEos};
      processors_.emplace(params_, tokens_, eos, static_cast<int32_t>(rows_[0].size()));
    }
  }

  size_t num_output() const { return tokens_.size() - prompt_length_; }
  size_t num_rows() const { return rows_.size(); }
  std::vector<int32_t> Output() const {
    return {tokens_.begin() + static_cast<std::ptrdiff_t>(prompt_length_), tokens_.end()};
  }

  /// One verify step with these drafts; what it emits is kept.
  VerifiedTokens Step(const std::vector<int32_t>& drafts) {
    std::vector<float> logits;
    for (size_t j = 0; j <= drafts.size(); ++j) {
      const std::vector<float>& row = rows_.at(num_output() + j);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    VerifiedTokens result;
    verifier_.Verify({.params = &params_,
                      .seed = 3,
                      .tokens = tokens_,
                      .prompt_length = prompt_length_,
                      .processors = processors_ ? &*processors_ : nullptr,
                      .logits = {logits.data(), static_cast<int64_t>(drafts.size()) + 1,
                                 static_cast<int64_t>(rows_[0].size())},
                      .drafts = drafts},
                     &result);
    tokens_.insert(tokens_.end(), result.tokens.begin(), result.tokens.end());
    return result;
  }

 private:
  SamplingParams params_;
  size_t prompt_length_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> rows_;
  Verifier verifier_;
  std::optional<LogitsProcessors> processors_;
};

std::vector<std::vector<float>> RandomRows(std::mt19937& random, size_t count) {
  std::vector<std::vector<float>> rows(count, std::vector<float>(kVocab));
  std::normal_distribution<float> normal(0, 2);
  for (auto& row : rows) {
    for (float& x : row) x = normal(random);
  }
  return rows;
}

/// A row that prefers the tokens of `order`, the first most.
std::vector<float> Preferring(const std::vector<int32_t>& order) {
  std::vector<float> row(kVocab, 0.0F);
  float x = 10;
  for (const int32_t token : order) row[static_cast<size_t>(token)] = x--;
  return row;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

VerifiedTokens Verify(const std::vector<int32_t>& drafts, const SamplingParams& params) {
  return Request(params, {0},
                 {Preferring({10}), Preferring({11}), Preferring({12}), Preferring({13})})
      .Step(drafts);
}

TEST(VerifierTest, AcceptsDraftsUntilTheFirstMismatch) {
  const SamplingParams params = Greedy();
  EXPECT_EQ(Verify({10, 11, 12}, params).tokens, (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(Verify({10, 11, 12}, params).num_accepted, 3);
  EXPECT_EQ(Verify({10, 9, 12}, params).tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(Verify({10, 9, 12}, params).num_accepted, 1);
  EXPECT_EQ(Verify({1, 11, 12}, params).tokens, (std::vector<int32_t>{10}));
  EXPECT_EQ(Verify({}, params).tokens, (std::vector<int32_t>{10}));
}

TEST(VerifierTest, DrawnTokensStandForLogits) {
  SamplingParams params;
  params.temperature = 0.7F;  // what they were drawn with does not matter
  Verifier verifier;
  ASSERT_FALSE(verifier.NeedsLogits(params, false));
  const std::vector<int32_t> prompt = {0};
  const std::vector<int32_t> drawn = {10, 11, 12, 13};
  for (const std::vector<int32_t>& drafts :
       {std::vector<int32_t>{10, 11, 12}, {10, 9, 12}, {1, 11, 12}, {}}) {
    VerifiedTokens result;
    verifier.Verify({.params = &params,
                     .tokens = prompt,
                     .prompt_length = 1,
                     .drawn = std::span(drawn).first(drafts.size() + 1),
                     .drafts = drafts},
                    &result);
    const VerifiedTokens want = Verify(drafts, Greedy());
    EXPECT_EQ(result.tokens, want.tokens);
    EXPECT_EQ(result.num_accepted, want.num_accepted);
    EXPECT_TRUE(result.logprobs.empty());
  }
}

TEST(VerifierTest, OverflownRowsAreADeadEndWithAndWithoutLogits) {
  const SamplingParams params = Greedy();
  const std::vector<int32_t> prompt = {0};
  VerifiedTokens result;
  for (const int32_t none : {kOverflownRow, Sampler::kNoToken}) {
    Verifier().Verify({.params = &params, .tokens = prompt, .drawn = std::span(&none, 1)}, &result);
    EXPECT_TRUE(result.dead_end);
    EXPECT_EQ(result.overflown, none == kOverflownRow);
  }
  using Limits = std::numeric_limits<float>;
  for (const float x : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    const std::vector<float> row(kVocab, x);
    for (const float temperature : {0.0F, 1.0F}) {
      SamplingParams any = params;
      any.temperature = temperature;
      result = Request(any, prompt, {row}).Step({});
      EXPECT_TRUE(result.dead_end && result.overflown);
    }
  }
}

// However tokens are drawn, and whether or not they may be what is NaN.
TEST(VerifierTest, OneNaNAmongTheLogitsOverflowsTheRow) {
  const std::vector<int32_t> prompt = {0};
  std::vector<SamplingParams> all(4, Greedy());
  all[1].temperature = 1;
  all[2].temperature = 1;
  all[2].top_k = 2;
  all[3].allowed_token_ids = {{4, 5}};
  for (SamplingParams& params : all) {
    params.logprobs = 0;
    const std::vector<float> good = Preferring({4});
    std::vector<float> bad = good;
    bad[7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(Request(params, prompt, {good}).Step({}).dead_end);
    EXPECT_TRUE(Request(params, prompt, {bad}).Step({}).overflown);
    // What comes before it counts.
    const VerifiedTokens result = Request(params, prompt, {good, bad}).Step({4});
    EXPECT_EQ(result.tokens.size(), static_cast<size_t>(result.num_accepted));
    EXPECT_EQ(result.overflown, result.num_accepted == 1);
  }
}

TEST(VerifierTest, SyntheticAcceptanceOfDrawnTokensIsThatOfLogits) {
  const AcceptanceOptions acceptance = {.method = RejectionMethod::kSynthetic, .rates = {0.6, 0.3}};
  const SamplingParams params = Greedy();
  const std::vector<int32_t> prompt = {0};
  const std::vector<int32_t> drafts = {3, 4};
  const std::vector<int32_t> drawn = {10, 11, 12};
  std::vector<float> logits;
  for (const int32_t token : drawn) {
    std::vector<float> row(kVocab, 0);
    row[static_cast<size_t>(token)] = 1;
    row[4] = -std::numeric_limits<float>::infinity();  // forbidden, as by the mask
    logits.insert(logits.end(), row.begin(), row.end());
  }
  std::vector<uint32_t> masks(3 * MaskWords(kVocab), ~uint32_t{0});
  for (size_t row = 0; row < 3; ++row) {
    SetAllowed(std::span(masks).subspan(row * MaskWords(kVocab), MaskWords(kVocab)), 4, false);
  }
  int accepted = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    VerifyInput input = {.params = &params, .seed = seed, .tokens = prompt, .prompt_length = 1};
    input.drafts = drafts;
    Verifier verifier(LogprobsMode::kRaw, acceptance);
    VerifiedTokens want;
    input.logits = MatrixView<const float>(logits.data(), 3, kVocab);
    verifier.Verify(input, &want);
    VerifiedTokens got;
    input.logits = {};
    input.drawn = drawn;
    input.masks =
        MatrixView<const uint32_t>(masks.data(), 3, static_cast<int64_t>(MaskWords(kVocab)));
    verifier.Verify(input, &got);
    EXPECT_EQ(got.tokens, want.tokens) << seed;
    EXPECT_EQ(got.num_accepted, want.num_accepted) << seed;
    accepted += want.num_accepted;
  }
  EXPECT_GT(accepted, 15);
  EXPECT_LT(accepted, 45);
}

TEST(VerifierTest, WhatReadsMoreThanDrawnTokensNeedsLogits) {
  EXPECT_TRUE(Verifier::DrawsLikeliest(Greedy(), /*processed=*/false));
  EXPECT_FALSE(Verifier::DrawsLikeliest(Greedy(), /*processed=*/true));
  SamplingParams drawn = Greedy();
  drawn.temperature = 0.5F;
  EXPECT_FALSE(Verifier::DrawsLikeliest(drawn, /*processed=*/false));
  EXPECT_FALSE(Verifier().NeedsLogits(drawn, false));
  const Verifier standard(LogprobsMode::kRaw, {.method = RejectionMethod::kStandard, .rates = {}});
  EXPECT_TRUE(standard.NeedsLogits(drawn, true));
  EXPECT_FALSE(standard.NeedsLogits(Greedy(), false));
  SamplingParams params = Greedy();
  params.logprobs = 0;
  EXPECT_TRUE(Verifier().NeedsLogits(params, false));
  EXPECT_FALSE(Verifier().NeedsLogits(params, true));
  // It emits drafts that were not drawn.
  const Verifier synthetic(LogprobsMode::kRaw,
                           {.method = RejectionMethod::kSynthetic, .rates = {0.5}});
  EXPECT_TRUE(synthetic.NeedsLogits(params, true));
  EXPECT_FALSE(synthetic.NeedsLogits(Greedy(), true));
}

TEST(VerifierTest, LogprobsOfDrawnTokensStandForLogits) {
  SamplingParams params = Greedy();
  params.logprobs = 1;
  const std::vector<int32_t> prompt = {0};
  const std::vector<int32_t> drawn = {10, 11, 12};
  const std::vector<int32_t> drafts = {10, 9};
  const std::vector<float> logprobs = {-0.5F, -0.25F, -1.0F};
  const std::vector<int32_t> ranks = {1, 2, 3};
  const std::vector<int32_t> top_tokens = {10, 3, 5, 11, 7, 6};  // two columns
  const std::vector<float> top_logprobs = {-0.5F, -2, -0.125F, -0.25F, -3, -4};
  VerifiedTokens result;
  Verifier().Verify(
      {.params = &params,
       .tokens = prompt,
       .prompt_length = 1,
       .drawn = drawn,
       .drawn_logprobs = {logprobs.data(), ranks.data(), top_tokens.data(), top_logprobs.data(), 2},
       .drafts = drafts},
      &result);
  ASSERT_EQ(result.tokens, (std::vector<int32_t>{10, 11}));
  ASSERT_EQ(result.logprobs.size(), 2U);
  EXPECT_EQ(result.logprobs[1].chosen.token_id, 11);
  EXPECT_EQ(result.logprobs[1].chosen.logprob, -0.25F);
  EXPECT_EQ(result.logprobs[1].rank, 2);
  ASSERT_EQ(result.logprobs[1].top.size(), 1U);
  EXPECT_EQ(result.logprobs[1].top[0].token_id, 5);
  EXPECT_EQ(result.logprobs[1].top[0].logprob, -0.125F);
}

TEST(VerifierTest, EmittedTokensDoNotDependOnTheDrafts) {
  SamplingParams params;
  params.temperature = 1.5F;
  const auto first = Verify({}, params).tokens.at(0);
  for (const int32_t draft : {0, 5, 10, 21}) {
    EXPECT_EQ(Verify({draft, draft}, params).tokens.at(0), first);
  }
}

TEST(VerifierTest, OneLogprobPerEmittedToken) {
  SamplingParams params = Greedy();
  params.logprobs = 2;
  const VerifiedTokens result = Verify({10, 9}, params);
  ASSERT_EQ(result.logprobs.size(), 2U);
  EXPECT_EQ(result.logprobs[1].chosen.token_id, 11);
  EXPECT_EQ(result.logprobs[1].top.size(), 2U);
}

bool SameBits(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id &&
           std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
  };
  return same(a.chosen, b.chosen) && a.rank == b.rank &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), same);
}

// Any fields, any drafts: what the request gives without drafts, token by token.
TEST(VerifierTest, DraftsChangeNothingWithAnyFields) {
  std::mt19937 random(5);
  int64_t accepted = 0;
  int dead_ends = 0;
  for (int round = 0; round < 400; ++round) {
    SamplingParams params = RandomParams(random);
    params.logprobs = static_cast<int32_t>(random() % 4);
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + random() % 8);
    const auto rows = RandomRows(random, 16);
    const auto mode = random() % 2 == 0 ? LogprobsMode::kRaw : LogprobsMode::kProcessed;
    Request serial(params, prompt, rows, mode);
    std::vector<PositionLogprobs> logprobs;
    bool dead_end = false;
    while (serial.num_output() < serial.num_rows() && !dead_end) {
      const VerifiedTokens result = serial.Step({});
      dead_end = result.dead_end;
      logprobs.insert(logprobs.end(), result.logprobs.begin(), result.logprobs.end());
    }
    const std::vector<int32_t> expected = serial.Output();

    Request speculative(params, prompt, rows, mode);
    bool speculative_dead_end = false;
    while (speculative.num_output() < speculative.num_rows() && !speculative_dead_end) {
      const size_t done = speculative.num_output();
      const size_t most = std::min<size_t>(3, speculative.num_rows() - done - 1);
      std::vector<int32_t> drafts;
      while (drafts.size() < most) {
        const size_t next = done + drafts.size();
        const bool right = random() % 4 != 0 && next < expected.size();
        drafts.push_back(right ? expected[next] : RandomTokens(random, 1)[0]);
      }
      const VerifiedTokens result = speculative.Step(drafts);
      accepted += result.num_accepted;
      speculative_dead_end = result.dead_end;
      ASSERT_EQ(result.tokens.size(), result.logprobs.size());
      for (size_t i = 0; i < result.tokens.size(); ++i) {
        ASSERT_LT(done + i, expected.size());
        ASSERT_TRUE(SameBits(result.logprobs[i], logprobs[done + i])) << round << " " << done + i;
      }
    }
    ASSERT_EQ(speculative.Output(), expected) << round;
    ASSERT_EQ(speculative_dead_end, dead_end);
    dead_ends += dead_end ? 1 : 0;
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(dead_ends, 0);
}

// Reference scenario 12, the part that is about rows: the fifth token is the first that may end it,
// and it is the third of this window.
TEST(VerifierTest, MinTokensEndsMidWindow) {
  SamplingParams params = Greedy();
  params.min_tokens = 4;
  params.stop_token_ids = {2};
  const auto row = Preferring({2, kEos, 5});
  Request request(params, {0}, std::vector<std::vector<float>>(6, row));
  EXPECT_EQ(request.Step({5}).tokens, (std::vector<int32_t>{5, 5}));
  EXPECT_EQ(request.Step({5, 5, 5}).tokens, (std::vector<int32_t>{5, 5, 2}));
  // A draft that ends the output too early is refused, one in time is accepted.
  Request again(params, {0}, std::vector<std::vector<float>>(6, row));
  EXPECT_EQ(again.Step({5, 5, 2}).tokens, (std::vector<int32_t>{5, 5, 5}));
  EXPECT_EQ(again.Step({5, 2}).num_accepted, 2);
}

// Reference scenario 13: the second row must count the first draft, the third row both.
TEST(VerifierTest, RepetitionPenaltyWhereDraft1IsDraft2) {
  SamplingParams params = Greedy();
  params.frequency_penalty = 1;
  // Token 7 leads 8 by 1.5: it comes until it was seen twice.
  std::vector<float> row(kVocab, 0.0F);
  row[7] = 9.5F;
  row[8] = 8;
  const std::vector<std::vector<float>> rows(4, row);
  EXPECT_EQ(Request(params, {0}, rows).Step({7, 7, 7}).tokens, (std::vector<int32_t>{7, 7, 8}));
  EXPECT_EQ(Request(params, {0}, rows).Step({7, 7, 8}).num_accepted, 3);
  // With a lead of 2.5 the fourth row is the first that prefers 8: each draft counts once.
  row[7] = 10.5F;
  EXPECT_EQ(Request(params, {0}, std::vector(4, row)).Step({7, 7, 7}).tokens,
            (std::vector<int32_t>{7, 7, 7, 8}));
  // The repetition penalty does not count, it knows whether a token was there: 9.5 / 1.25 < 8.
  params.frequency_penalty = 0;
  params.repetition_penalty = 1.25F;
  EXPECT_EQ(Request(params, {0}, rows).Step({7, 7, 7}).tokens, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(Request(params, {7}, rows).Step({7, 7, 7}).tokens, (std::vector<int32_t>{8}));
}

// Reference scenario 14: draft 2 begins the word, the bonus token would end it.
TEST(VerifierTest, BadWordSpansAcceptedDraftAndBonus) {
  SamplingParams params = Greedy();
  params.bad_words = {{4, 5, 6}};
  const std::vector<std::vector<float>> rows = {Preferring({4}), Preferring({5}),
                                                Preferring({6, 7}), Preferring({6})};
  EXPECT_EQ(Request(params, {0}, rows).Step({4, 5}).tokens, (std::vector<int32_t>{4, 5, 7}));
  EXPECT_EQ(Request(params, {0}, rows).Step({4, 5, 6}).num_accepted, 2);
  // The word may begin before the window.
  Request request(params, {0}, rows);
  EXPECT_EQ(request.Step({}).tokens, (std::vector<int32_t>{4}));
  EXPECT_EQ(request.Step({5}).tokens, (std::vector<int32_t>{5, 7}));
}

TEST(VerifierTest, ADeadEndEndsTheWindow) {
  SamplingParams params = Greedy();
  params.allowed_token_ids = {{4, 5}};
  params.bad_words = {{4, 5, 4}, {4, 5, 5}};
  const std::vector<std::vector<float>> rows = {Preferring({4}), Preferring({5}), Preferring({4}),
                                                Preferring({4})};
  const VerifiedTokens result = Request(params, {0}, rows).Step({4, 5, 4});
  EXPECT_TRUE(result.dead_end);
  EXPECT_FALSE(result.overflown);
  EXPECT_EQ(result.tokens, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(result.num_accepted, 2);
  EXPECT_FALSE(Request(params, {0}, rows).Step({4, 4, 4}).dead_end);
}

TEST(VerifierTest, RawLogprobsIgnoreTheFieldsProcessedOnesTellThem) {
  SamplingParams params;
  params.temperature = 0.5F;
  params.top_k = 2;
  params.logit_bias = {{3, 100}, {9, -2}};
  params.logprobs = 3;
  std::vector<float> row(kVocab, 0.0F);
  row[9] = 4;
  row[8] = 1;
  const VerifiedTokens raw = Request(params, {0}, {row}).Step({});
  ASSERT_EQ(raw.tokens, (std::vector<int32_t>{3}));
  EXPECT_NEAR(raw.logprobs[0].chosen.logprob, -std::log(std::exp(4.0) + std::exp(1.0) + kVocab - 2),
              1e-5);
  EXPECT_EQ(raw.logprobs[0].top[0].token_id, 9);
  EXPECT_EQ(raw.logprobs[0].rank, 6);  // after 9, 8 and its equals 0, 1, 2

  params.logit_bias[0].value = 3;
  const VerifiedTokens processed = Request(params, {0}, {row}, LogprobsMode::kProcessed).Step({});
  const PositionLogprobs& logprobs = processed.logprobs[0];
  // 3 with 3 and 9 with 4 - 2 are left, at half the temperature.
  const double sum = std::exp(6.0) + std::exp(4.0);
  EXPECT_EQ(logprobs.top[0].token_id, 3);
  EXPECT_NEAR(logprobs.top[0].logprob, 6 - std::log(sum), 1e-5);
  EXPECT_EQ(logprobs.top[1].token_id, 9);
  EXPECT_NEAR(logprobs.top[1].logprob, 4 - std::log(sum), 1e-5);
  EXPECT_EQ(logprobs.top[2].logprob, kMasked);

  params.temperature = 0;  // greedy: neither temperature nor cuts
  const VerifiedTokens greedy = Request(params, {0}, {row}, LogprobsMode::kProcessed).Step({});
  EXPECT_NEAR(greedy.logprobs[0].chosen.logprob,
              3 - std::log(std::exp(3.0) + std::exp(2.0) + std::exp(1.0) + kVocab - 3), 1e-5);
}

}  // namespace
}  // namespace outrider
