// The GPU's sampler against the CPU's Verifier and ComputeLogprobs over the same logits: equal
// tokens, ranks and places, log-probabilities to rounding, whatever the fields; and the same bits
// for each request alone. Needs a GPU of compute capability 9.0, and cuDNN.
#include "tests/ops/cuda/cuda_sampler_fixture.h"

namespace outrider::cuda {
namespace {

TEST_F(CudaSamplerTest, VerifiesAsTheCpuDoesWhateverTheFields) {
  AcceptanceOptions synthetic = {.method = RejectionMethod::kSynthetic,
                                 .rates = {0.9, 0.7, 0.5, 0.3}};
  const std::vector<Verifier> verifiers = {
      Verifier(), Verifier(LogprobsMode::kProcessed),
      Verifier(LogprobsMode::kRaw, {.method = RejectionMethod::kStandard, .rates = {}}),
      Verifier(LogprobsMode::kRaw, synthetic)};
  int accepted = 0;
  int dead_ends = 0;
  int with_logprobs = 0;
  for (const Verifier& verifier : verifiers) {
    const Scratch::Frame frame(*arena_);
    std::vector<SampledRequest> requests = MakeRequests(150);
    MakeRows(requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1);
    AcceptSome(requests, verifier);
    const std::vector<VerifiedTokens> got = VerifyOnTheDevice(requests, verifier);
    ASSERT_GT(rows_.size(), 256);
    const std::vector<VerifiedTokens> in_tiles =
        VerifyOnTheDevice(requests, verifier, /*keep=*/false, /*tile_bytes=*/0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectSame(in_tiles[i], got[i]);
      const VerifiedTokens want = VerifyOnTheCpu(requests[i], verifier);
      EXPECT_EQ(got[i].tokens, want.tokens);
      EXPECT_EQ(got[i].num_accepted, want.num_accepted);
      EXPECT_EQ(got[i].dead_end, want.dead_end);
      EXPECT_EQ(got[i].overflown, want.overflown);
      ASSERT_EQ(got[i].logprobs.size(), want.logprobs.size());
      for (size_t t = 0; t < want.logprobs.size(); ++t) {
        ExpectNear(got[i].logprobs[t], want.logprobs[t]);
      }
      if (i % 10 == 0) {
        SampledRequest alone = requests[i];
        ExpectSame(VerifyOnTheDevice({&alone, 1}, verifier)[0], got[i]);
      }
      accepted += want.num_accepted;
      dead_ends += want.dead_end ? 1 : 0;
      with_logprobs += static_cast<int>(want.logprobs.size());
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(dead_ends, 5);
  EXPECT_GT(with_logprobs, 100);
}

// A drafter's head over some of the tokens, in an order of its own.
TEST_F(CudaSamplerTest, DrawsAmongTokensOfRows) {
  constexpr int32_t kTargetVocab = 1009;
  MakeRows(90);
  std::vector<int32_t> ids(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) ids[static_cast<size_t>(i)] = (7 + 11 * i) % kTargetVocab;
  SamplingParams params;
  params.temperature = 1.1F;
  ops_->KeepTokens(90);
  std::vector<DrawRequest> draws(rows_.size());
  std::vector<std::vector<float>> probs(rows_.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    draws[i].draw = {.seed = i, .position = 9};
    draws[i].place = static_cast<int32_t>(89 - i);
    if (i % 3 != 0) draws[i].sampling = &params;
    if (i % 3 == 2) {
      probs[i].resize(kTargetVocab);
      draws[i].draw.probs = probs[i];
    }
  }
  const auto sampler = ops_->MakeSampler({*ops_, &pool_}, Verifier());
  std::vector<TokenRef> tokens(rows_.size());
  sampler->Draw(MakeContext(), {head_, x_, rows_}, draws,
                {.rows = kVocab, .ids = ids, .vocab_size = kTargetVocab}, tokens);
  ops_->ReadTokens();
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::vector<float> by_token(kTargetVocab, -std::numeric_limits<float>::infinity());
    for (size_t j = 0; j < ids.size(); ++j) {
      by_token[static_cast<size_t>(ids[j])] = logits_.view().row(static_cast<int64_t>(i))[j];
    }
    std::vector<float> want_probs(probs[i].size());
    Sampler alone;
    const auto likeliest = std::max_element(by_token.begin(), by_token.end()) - by_token.begin();
    EXPECT_EQ(tokens[i].on_device(), i % 3 == 0);
    EXPECT_EQ(ops_->ReadToken(tokens[i]),
              i % 3 == 0 ? likeliest
                         : DrawDraft(alone, params, {.seed = i, .position = 9, .probs = want_probs},
                                     by_token))
        << i;
    EXPECT_EQ(probs[i], want_probs) << i;
  }
}

TEST_F(CudaSamplerTest, ScoresGivenTokens) {
  MakeRows(300);
  std::vector<PositionLogprobs> scores(rows_.size());
  std::vector<ScoreRequest> wanted;
  for (size_t i = 0; i < rows_.size(); ++i) {
    wanted.push_back({.token = static_cast<int32_t>(i) % kVocab,
                      .num_top = static_cast<int32_t>(i % 5),
                      .result = &scores[i]});
  }
  wanted[7].num_top = kMaxTopLogprobs + 1;  // by the host
  const auto sampler = ops_->MakeSampler({*ops_, &pool_}, Verifier());
  sampler->Score(MakeContext(), {head_, x_, rows_}, wanted);
  for (size_t i = 0; i < rows_.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectNear(scores[i], ComputeLogprobs({logits_.view().row(static_cast<int64_t>(i)), kVocab},
                                          wanted[i].token, wanted[i].num_top));
  }
}

}  // namespace
}  // namespace outrider::cuda
