// Requests with random fields over random rows of logits, and the GPU's sampler beside the CPU's
// Verifier.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "outrider/ops/cuda/cuda_sampler.h"
#include "outrider/ops/tokens_on_device.h"
#include "outrider/sampling/token_mask.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/sampling/random_params.h"

namespace outrider::cuda {

inline constexpr int64_t kSamplerHidden = 64;
inline constexpr int32_t kMostDrafts = 4;

struct SampledRequest {
  SamplingParams params;
  std::vector<int32_t> tokens;
  size_t prompt_length = 0;
  std::vector<TokenRef> drafts;
  std::vector<uint32_t> masks;
  int32_t first_row = 0;
};

inline void ExpectNear(const PositionLogprobs& a, const PositionLogprobs& b) {
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

inline void ExpectSame(const VerifiedTokens& a, const VerifiedTokens& b) {
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
    arena_ = ops_->MakeArena();
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
      const std::vector<int32_t> drafts = RandomTokens(random_, random_() % 5);
      r.drafts.assign(drafts.begin(), drafts.end());
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
  /// Where the numbers of a request are kept.
  static VerifyPlaces PlacesOf(size_t request) {
    return SlotPlaces(static_cast<int32_t>(request), kMostDrafts).of_verification();
  }
  void ExpectKept(const std::vector<int32_t>& kept, size_t request, const SampledRequest& r,
                  const VerifiedTokens& verified) const {
    const auto at = [&](int32_t place) { return kept.at(static_cast<size_t>(place)); };
    const VerifyPlaces places = PlacesOf(request);
    if (verified.dead_end) {
      EXPECT_LT(at(places.last_token), 0);
    } else {
      EXPECT_EQ(at(places.last_token), verified.tokens.back());
    }
    for (size_t j = 0; j < verified.tokens.size(); ++j) {
      EXPECT_EQ(at(places.drawn + static_cast<int32_t>(j)), verified.tokens[j]) << j;
    }
    EXPECT_EQ(at(places.rejected), static_cast<int32_t>(r.drafts.size()) - verified.num_accepted);
    EXPECT_EQ(at(places.last_row), rows_[static_cast<size_t>(r.first_row + verified.num_accepted)]);
  }

  std::vector<VerifiedTokens> VerifyOnTheDevice(std::span<const SampledRequest> requests,
                                                const Verifier& verifier, bool keep = false,
                                                int64_t tile_bytes = kLogitsTileBytes) {
    CudaSampler sampler(*ops_, pool_.size(), verifier, tile_bytes);
    std::vector<LogitsProcessors> processors;
    for (const SampledRequest& r : requests) processors.push_back(Processors(r));
    std::vector<VerifiedTokens> results(requests.size());
    std::vector<VerifyRequest> verify;
    for (size_t i = 0; i < requests.size(); ++i) {
      verify.push_back({.input = Input(requests[i], &processors[i]),
                        .first_row = requests[i].first_row,
                        .result = &results[i],
                        .places = keep ? PlacesOf(i) : VerifyPlaces()});
    }
    sampler.Verify(MakeContext(), {head_, x_, rows_}, verify);
    return results;
  }

  std::mt19937 random_{17};
  ThreadPool pool_{2};
  const CudaOps* ops_ = nullptr;
  std::unique_ptr<Arena> arena_;
  Weight head_;
  std::unique_ptr<WeightMemory> memory_;
  Tensor x_;
  TestMatrix logits_{0, 0};
  std::vector<int32_t> rows_;
  std::vector<int32_t> eos_ = {kEos};
};

}  // namespace outrider::cuda
