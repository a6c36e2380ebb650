// Tokens and results that stay on the GPU until the host reads them: drafts, last tokens, and what
// verification comes to. Needs a GPU of compute capability 9.0, and cuDNN.
#include <optional>

#include "tests/ops/cuda/cuda_sampler_fixture.h"

namespace outrider::cuda {
namespace {

// Drafts that the host has not read are verified as those that it knows, whatever the fields.
TEST_F(CudaSamplerTest, DraftsStayOnTheDevice) {
  const std::vector<Verifier> verifiers = {
      Verifier(), Verifier(LogprobsMode::kProcessed),
      Verifier(LogprobsMode::kRaw, {.method = RejectionMethod::kStandard, .rates = {}})};
  size_t result_bytes = 1 << 20;
  for (const Verifier& verifier : verifiers) {
    const Scratch::Frame frame(*arena_);
    std::vector<SampledRequest> requests = MakeRequests(70);
    const int32_t num_rows =
        requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1;
    MakeRows(num_rows);
    ops_->KeepTokens(num_rows + 5);
    // As each row of the target draws them, without masks and processors: many are right.
    std::vector<DrawRequest> draws;
    std::vector<int32_t> drawn_rows;
    for (const SampledRequest& r : requests) {
      for (size_t j = 0; j < r.drafts.size(); ++j) {
        const int32_t row = r.first_row + static_cast<int32_t>(j);
        drawn_rows.push_back(rows_[static_cast<size_t>(row)]);
        draws.push_back({.sampling = r.params.temperature > 0 ? &r.params : nullptr,
                         .draw = {.seed = static_cast<uint64_t>(r.first_row),
                                  .position = static_cast<int64_t>(r.tokens.size() + j)},
                         .place = num_rows - row});
      }
    }
    std::vector<TokenRef> drafts(draws.size());
    const auto drafter = ops_->MakeSampler({*ops_, &pool_}, Verifier());
    drafter->Draw(MakeContext(), {head_, x_, drawn_rows}, draws, {.rows = kVocab}, drafts);
    const std::vector<TokenRef> on_device = drafts;
    ops_->ReadTokens();
    size_t next = 0;
    Sampler sampler;
    for (SampledRequest& r : requests) {
      for (size_t j = 0; j < r.drafts.size(); ++j, ++next) {
        const std::span<const float> logits(
            logits_.view().row(r.first_row + static_cast<int64_t>(j)), kVocab);
        EXPECT_TRUE(drafts[next].on_device());
        r.drafts[j] = ops_->ReadToken(drafts[next]);
        EXPECT_EQ(r.drafts[j], sampler.Sample(r.params,
                                              {static_cast<uint64_t>(r.first_row),
                                               static_cast<int64_t>(r.tokens.size() + j)},
                                              logits));
      }
    }
    const std::vector<VerifiedTokens> want = VerifyOnTheDevice(requests, verifier);
    // Drawn anew, so that the host has not read them.
    drafter->Draw(MakeContext(), {head_, x_, drawn_rows}, draws, {.rows = kVocab}, drafts);
    EXPECT_EQ(drafts, on_device);
    // They stay when results need more memory.
    const int32_t* const before = ops_->results().tokens();
    ops_->results().Reserve(ops_->results().num_tokens(), result_bytes *= 8, ops_->stream());
    EXPECT_NE(ops_->results().tokens(), before);
    std::vector<SampledRequest> unread = requests;
    next = 0;
    for (SampledRequest& r : unread) {
      for (TokenRef& draft : r.drafts) draft = drafts[next++];
    }
    const std::vector<VerifiedTokens> got = VerifyOnTheDevice(unread, verifier);
    int accepted = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(got[i].num_accepted, want[i].num_accepted);
      ExpectSame(got[i], want[i]);
      accepted += got[i].num_accepted;
    }
    EXPECT_GT(accepted, 20);
  }
}

// The next step reads the last tokens where this one left them, and its results come late.
TEST_F(CudaSamplerTest, LaterResultsAreTheSameAndLastTokensStay) {
  constexpr int32_t kCount = 300;
  const auto sampler = ops_->MakeSampler({*ops_, &pool_}, Verifier());
  ops_->KeepTokens(kCount);
  std::vector<SampledRequest> requests = MakeRequests(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    SampledRequest& r = requests[i];
    r.drafts.clear();
    r.masks.clear();
    r.first_row = static_cast<int32_t>(i);
    if (r.params.logprobs == kVocab) r.params.logprobs = 2;
    r.params.repetition_penalty = 1;
    r.params.presence_penalty = r.params.frequency_penalty = 0;
    r.params.logit_bias.clear();
    r.params.min_tokens = 0;
    r.params.allowed_token_ids.reset();
    r.params.bad_words.clear();
    ASSERT_FALSE(LogitsProcessors::Needed(r.params));
  }
  constexpr int kSteps = 3;  // two of them in flight
  std::vector<std::vector<VerifiedTokens>> got(kSteps, std::vector<VerifiedTokens>(kCount));
  std::vector<std::vector<VerifiedTokens>> want(kSteps);
  std::vector<std::vector<int32_t>> kept(kSteps, std::vector<int32_t>(kCount));
  std::optional<Ticket> before;
  for (int step = 0; step < kSteps; ++step) {
    const Scratch::Frame frame(*arena_);
    MakeRows(kCount);
    for (const SampledRequest& r : requests) want[step].push_back(VerifyOnTheCpu(r, Verifier()));
    std::vector<VerifyRequest> verify;
    for (size_t i = 0; i < kCount; ++i) {
      verify.push_back({.input = Input(requests[i], nullptr),
                        .first_row = requests[i].first_row,
                        .result = &got[step][i],
                        .places = {.last_token = static_cast<int32_t>(kCount - 1 - i)}});
    }
    const auto ticket = sampler->Launch(MakeContext(), {head_, x_, rows_}, verify);
    ASSERT_TRUE(ticket);
    Copy(kept[step].data(), ops_->results().tokens(), kCount * sizeof(int32_t));
    if (before) sampler->Wait(*before);
    before = ticket;
  }
  sampler->Wait(*before);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < kCount; ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(got[step][i].tokens, want[step][i].tokens);
      EXPECT_EQ(kept[step][kCount - 1 - i], want[step][i].tokens.at(0));
      ASSERT_EQ(got[step][i].logprobs.size(), want[step][i].logprobs.size());
      if (!want[step][i].logprobs.empty()) {
        ExpectNear(got[step][i].logprobs[0], want[step][i].logprobs[0]);
      }
    }
  }
  EXPECT_NE(kept[0], kept[1]);

  // The host has to draw for this one, and then does all.
  requests[7].params.logprobs = kMaxTopLogprobs + 1;
  VerifiedTokens none;
  const VerifyRequest request{.input = Input(requests[7], nullptr), .result = &none};
  EXPECT_FALSE(sampler->Launch(MakeContext(), {head_, x_, rows_}, {&request, 1}));
}

// Of requests with drafts: what the drafter and the next step read before the host does.
TEST_F(CudaSamplerTest, WhatVerificationComesToStays) {
  std::vector<SampledRequest> requests = MakeRequests(150);
  MakeRows(requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1);
  for (SampledRequest& r : requests) {
    if (r.params.logprobs == kVocab) r.params.logprobs = 2;
  }
  AcceptSome(requests, Verifier());
  std::vector<int32_t> kept(requests.size() * SlotPlaces::PerSlot(kMostDrafts));
  ops_->KeepTokens(static_cast<int32_t>(kept.size()));
  const std::vector<VerifiedTokens> got = VerifyOnTheDevice(requests, Verifier(), /*keep=*/true);
  Copy(kept.data(), ops_->results().tokens(), kept.size() * sizeof(int32_t));
  int32_t accepted = 0;
  int32_t rejected = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectKept(kept, i, requests[i], got[i]);
    accepted += got[i].num_accepted;
    rejected += static_cast<int32_t>(requests[i].drafts.size()) - got[i].num_accepted;
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 50);
}

// Drafts are verified before the host has read them, and it gets their values with the results; by
// what is drawn, and by given rates.
TEST_F(CudaSamplerTest, LaterResultsOfDraftsAreTheSame) {
  const std::vector<Verifier> verifiers = {
      Verifier(), Verifier(LogprobsMode::kRaw,
                           {.method = RejectionMethod::kSynthetic, .rates = {0.9, 0.7, 0.5, 0.3}})};
  for (const Verifier& verifier : verifiers) {
    const bool synthetic = &verifier == &verifiers.back();
    const Scratch::Frame frame(*arena_);
    std::vector<SampledRequest> requests = MakeRequests(90);
    MakeRows(requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1);
    for (SampledRequest& r : requests) {
      r.masks.clear();
      SamplingParams plain;
      plain.temperature = r.params.temperature;
      if (r.params.logprobs && !synthetic) plain.logprobs = std::min(*r.params.logprobs, 2);
      r.params = plain;
    }
    if (!synthetic) AcceptSome(requests, verifier);
    const std::vector<VerifiedTokens> want = VerifyOnTheDevice(requests, verifier);
    // The first draft of each is known to the device alone.
    const auto first_places =
        static_cast<int32_t>(requests.size()) * SlotPlaces::PerSlot(kMostDrafts);
    std::vector<int32_t> kept(static_cast<size_t>(first_places) + requests.size());
    ops_->KeepTokens(static_cast<int32_t>(kept.size()));
    std::vector<SampledRequest> unread = requests;
    std::vector<VerifiedTokens> got(requests.size());
    std::vector<VerifyRequest> verify;
    for (size_t i = 0; i < requests.size(); ++i) {
      const int32_t place = first_places + static_cast<int32_t>(i);
      if (!unread[i].drafts.empty()) {
        kept.at(static_cast<size_t>(place)) =
            std::exchange(unread[i].drafts[0], TokenRef::At(place)).token();
      }
      verify.push_back({.input = Input(unread[i], nullptr),
                        .first_row = unread[i].first_row,
                        .result = &got[i],
                        .places = PlacesOf(i)});
    }
    Copy(ops_->results().tokens(), kept.data(), kept.size() * sizeof(int32_t));
    const auto sampler = ops_->MakeSampler({*ops_, &pool_}, verifier);
    const auto ticket = sampler->Launch(MakeContext(), {head_, x_, rows_}, verify);
    ASSERT_TRUE(ticket);
    Copy(kept.data(), ops_->results().tokens(), kept.size() * sizeof(int32_t));
    sampler->Wait(*ticket);
    int32_t accepted = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(got[i].num_accepted, want[i].num_accepted);
      ExpectSame(got[i], want[i]);
      ExpectKept(kept, i, requests[i], want[i]);
      accepted += got[i].num_accepted;
    }
    EXPECT_GT(accepted, 30);
  }
}

}  // namespace
}  // namespace outrider::cuda
