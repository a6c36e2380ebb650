// The GPU's sampler against the CPU's Verifier and ComputeLogprobs over the same logits: equal
// tokens, ranks and places, log-probabilities to rounding, whatever the fields; and the same bits
// for each request alone. Needs a GPU of compute capability 9.0, and cuDNN.
#include "outrider/ops/cuda/cuda_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "outrider/ops/tokens_on_device.h"
#include "outrider/sampling/token_mask.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/sampling/random_params.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kSamplerHidden = 64;

struct SampledRequest {
  SamplingParams params;
  std::vector<int32_t> tokens;
  size_t prompt_length = 0;
  std::vector<int32_t> drafts;
  std::vector<uint32_t> masks;
  int32_t first_row = 0;
};

void ExpectNear(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto near = [](float x, float y) {
    return x == y || std::abs(x - y) <= 2e-5F * (1 + std::abs(y));
  };
  EXPECT_EQ(a.chosen.token_id, b.chosen.token_id);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_TRUE(near(a.chosen.logprob, b.chosen.logprob))
      << a.chosen.logprob << " and " << b.chosen.logprob;
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < b.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token_id, b.top[i].token_id) << "place " << i;
    EXPECT_TRUE(near(a.top[i].logprob, b.top[i].logprob)) << "place " << i;
  }
}

void ExpectSame(const VerifiedTokens& a, const VerifiedTokens& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  for (size_t t = 0; t < a.logprobs.size(); ++t) {
    const PositionLogprobs& x = a.logprobs[t];
    const PositionLogprobs& y = b.logprobs[t];
    EXPECT_EQ(bits(x.chosen.logprob), bits(y.chosen.logprob));
    ASSERT_EQ(x.top.size(), y.top.size());
    for (size_t i = 0; i < x.top.size(); ++i) {
      EXPECT_EQ(x.top[i].token_id, y.top[i].token_id);
      EXPECT_EQ(bits(x.top[i].logprob), bits(y.top[i].logprob));
    }
  }
}

class CudaSamplerTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    static const CudaOps* const shared = new CudaOps;
    ops_ = shared;
    arena_ = std::make_unique<Scratch>(ops_->MakeArena());
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const Device device{*ops_, &pool_};
    const auto loader = ops_->MakeWeightLoader(*source, {.compute_dtype = DType::kBF16});
    loader->Matrix(&head_, "lm_head.weight", kVocab, kSamplerHidden);
    memory_ = loader->Load(device, nullptr);
  }

  Context MakeContext() { return {{*ops_, &pool_}, *arena_, DType::kBF16}; }

  /// Hidden rows, and the logits that the device makes of them.
  void MakeRows(int32_t count) {
    const TestMatrix x = TestMatrix::Random(count, kSamplerHidden, random_);
    const Context context = MakeContext();
    x_ = context.Rows(count, kSamplerHidden);
    Copy(x_.data, x.values.data(), x.values.size() * sizeof(float));
    rows_.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) rows_[static_cast<size_t>(i)] = count - 1 - i;
    const Tensor logits = context.Rows(count, kVocab);
    ops_->Head(context, x_, rows_, head_, logits);
    logits_ = TestMatrix(count, kVocab);
    for (int64_t i = 0; i < count; ++i) {
      Copy(logits_.view().row(i), static_cast<float*>(logits.data) + i * logits.stride,
           kVocab * sizeof(float));
    }
  }
  void Copy(void* to, const void* from, size_t bytes) {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ops_->stream()), "copy");
    ops_->Synchronize();
  }

  std::vector<SampledRequest> MakeRequests(size_t count) {
    std::vector<SampledRequest> requests(count);
    int32_t num_rows = 0;
    for (SampledRequest& r : requests) {
      r.params = RandomParams(random_);
      if (random_() % 2 == 0) r.params.logprobs = static_cast<int32_t>(random_() % 6);
      if (random_() % 8 == 0) r.params.logprobs = kVocab;
      r.tokens = RandomTokens(random_, 1 + random_() % 12);
      r.prompt_length = 1 + random_() % r.tokens.size();
      r.drafts = RandomTokens(random_, random_() % 5);
      r.first_row = num_rows;
      num_rows += static_cast<int32_t>(r.drafts.size()) + 1;
      if (random_() % 3 == 0) {
        r.masks.assign((r.drafts.size() + 1) * MaskWords(kVocab), 0);
        for (uint32_t& word : r.masks) word = random_() | random_();
      }
    }
    return requests;
  }
  /// Drafts become what is drawn, often.
  void AcceptSome(std::vector<SampledRequest>& requests, const Verifier& verifier) {
    for (SampledRequest& r : requests) {
      for (size_t j = 0; j < r.drafts.size() && random_() % 4 != 0; ++j) {
        const VerifiedTokens drawn = VerifyOnTheCpu(r, verifier);
        if (j < drawn.tokens.size()) r.drafts[j] = drawn.tokens[j];
      }
    }
  }

  /// `processors`: of the request, which may keep what they counted.
  VerifyInput Input(const SampledRequest& r, LogitsProcessors* processors) {
    VerifyInput input = {.params = &r.params,
                         .seed = static_cast<uint64_t>(r.first_row),
                         .tokens = r.tokens,
                         .prompt_length = r.prompt_length,
                         .processors = LogitsProcessors::Needed(r.params) ? processors : nullptr,
                         .drafts = r.drafts};
    if (!r.masks.empty()) {
      input.masks = {r.masks.data(), static_cast<int64_t>(r.drafts.size()) + 1,
                     static_cast<int64_t>(MaskWords(kVocab))};
    }
    return input;
  }
  LogitsProcessors Processors(const SampledRequest& r) {
    return {r.params, std::span(r.tokens).first(r.prompt_length), eos_, kVocab};
  }
  VerifiedTokens VerifyOnTheCpu(const SampledRequest& r, Verifier verifier) {
    LogitsProcessors processors = Processors(r);
    VerifyInput input = Input(r, &processors);
    input.logits = logits_.view().Rows(r.first_row, static_cast<int64_t>(r.drafts.size()) + 1);
    VerifiedTokens result;
    verifier.Verify(input, &result);
    return result;
  }
  std::vector<VerifiedTokens> VerifyOnTheDevice(std::span<const SampledRequest> requests,
                                                const Verifier& verifier, bool keep = false) {
    const auto sampler = ops_->MakeSampler({*ops_, &pool_}, verifier);
    std::vector<LogitsProcessors> processors;
    for (const SampledRequest& r : requests) processors.push_back(Processors(r));
    std::vector<VerifiedTokens> results(requests.size());
    std::vector<VerifyRequest> verify;
    for (size_t i = 0; i < requests.size(); ++i) {
      verify.push_back({.input = Input(requests[i], &processors[i]),
                        .first_row = requests[i].first_row,
                        .result = &results[i],
                        .place = keep ? static_cast<int32_t>(i) : -1});
    }
    sampler->Verify(MakeContext(), {head_, x_, rows_}, verify);
    return results;
  }

  std::mt19937 random_{17};
  ThreadPool pool_{2};
  const CudaOps* ops_ = nullptr;
  std::unique_ptr<Scratch> arena_;
  Weight head_;
  std::unique_ptr<WeightMemory> memory_;
  Tensor x_;
  TestMatrix logits_{0, 0};
  std::vector<int32_t> rows_;
  std::vector<int32_t> eos_ = {kEos};
};

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
    std::vector<SampledRequest> requests = MakeRequests(150);  // more rows than a tile of logits
    MakeRows(requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1);
    AcceptSome(requests, verifier);
    const std::vector<VerifiedTokens> got = VerifyOnTheDevice(requests, verifier);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
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
    std::vector<int32_t> drafts(draws.size());
    const auto drafter = ops_->MakeSampler({*ops_, &pool_}, Verifier());
    drafter->Draw(MakeContext(), {head_, x_, drawn_rows}, draws, {.rows = kVocab}, drafts);
    const std::vector<int32_t> on_device = drafts;
    ops_->ReadTokens();
    size_t next = 0;
    Sampler sampler;
    for (SampledRequest& r : requests) {
      for (size_t j = 0; j < r.drafts.size(); ++j, ++next) {
        const std::span<const float> logits(
            logits_.view().row(r.first_row + static_cast<int64_t>(j)), kVocab);
        EXPECT_TRUE(IsOnDevice(drafts[next]));
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
    ops_->ReserveResults(result_bytes *= 8);
    EXPECT_NE(ops_->results().tokens(), before);
    std::vector<SampledRequest> unread = requests;
    next = 0;
    for (SampledRequest& r : unread) {
      for (int32_t& draft : r.drafts) draft = drafts[next++];
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
  for (int step = 0; step < kSteps; ++step) {
    const Scratch::Frame frame(*arena_);
    MakeRows(kCount);
    for (const SampledRequest& r : requests) want[step].push_back(VerifyOnTheCpu(r, Verifier()));
    std::vector<VerifyRequest> verify;
    for (size_t i = 0; i < kCount; ++i) {
      verify.push_back({.input = Input(requests[i], nullptr),
                        .first_row = requests[i].first_row,
                        .result = &got[step][i],
                        .place = static_cast<int32_t>(kCount - 1 - i)});
    }
    ASSERT_TRUE(sampler->VerifyLater(MakeContext(), {head_, x_, rows_}, verify));
    Copy(kept[step].data(), ops_->results().tokens(), kCount * sizeof(int32_t));
    if (step > 0) sampler->Collect();
  }
  sampler->Collect();
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
  EXPECT_FALSE(sampler->VerifyLater(MakeContext(), {head_, x_, rows_}, {&request, 1}));
}

// Of requests with drafts: behind those that were accepted.
TEST_F(CudaSamplerTest, LastTokensStayBehindAcceptedDrafts) {
  std::vector<SampledRequest> requests = MakeRequests(150);
  MakeRows(requests.back().first_row + static_cast<int32_t>(requests.back().drafts.size()) + 1);
  for (SampledRequest& r : requests) {
    if (r.params.logprobs == kVocab) r.params.logprobs = 2;
  }
  AcceptSome(requests, Verifier());
  ops_->KeepTokens(static_cast<int32_t>(requests.size()));
  const std::vector<VerifiedTokens> got = VerifyOnTheDevice(requests, Verifier(), /*keep=*/true);
  std::vector<int32_t> kept(requests.size());
  Copy(kept.data(), ops_->results().tokens(), kept.size() * sizeof(int32_t));
  int32_t accepted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    if (got[i].dead_end) {
      EXPECT_LT(kept[i], 0);
    } else {
      EXPECT_EQ(kept[i], got[i].tokens.back());
    }
    accepted += got[i].num_accepted;
  }
  EXPECT_GT(accepted, 50);
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
  std::vector<int32_t> tokens(rows_.size());
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
    EXPECT_EQ(IsOnDevice(tokens[i]), i % 3 == 0);
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
