// Tokens drawn on the device against those that the CPU draws from the same logits: equal, whatever
// the fields. Log-probabilities to rounding, their tokens exactly. Needs a
// GPU of compute capability 9.0.
#include "outrider/kernels/cuda/sampling/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sampling/draw_world.h"

namespace outrider::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Kinds of rows of logits.
enum class Logits { kNormal, kWide, kFlat, kTied, kEqual, kPeaked, kHoles };
constexpr Logits kAllLogits[] = {Logits::kNormal, Logits::kWide,   Logits::kFlat, Logits::kTied,
                                 Logits::kEqual,  Logits::kPeaked, Logits::kHoles};

class DrawTest : public HopperTest<> {
 protected:
  std::vector<float> MakeLogits(Logits kind, int32_t vocab) {
    std::vector<float> row = NormalFloats(random_, static_cast<size_t>(vocab),
                                          kind == Logits::kWide   ? 12.0F
                                          : kind == Logits::kFlat ? 0.01F
                                                                  : 2.5F);
    for (float& x : row) {
      if (kind == Logits::kTied) x = std::round(x);
      if (kind == Logits::kEqual) x = -3.25F;
      if (kind == Logits::kHoles && random_() % 3 == 0) x = -kInfinity;
    }
    if (kind == Logits::kPeaked) row[random_() % row.size()] += 40.0F;
    return row;
  }

  std::vector<int32_t> Tokens(size_t count, int32_t vocab) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % vocab);
    return tokens;
  }

  float Uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }

  /// Any of the fields, each in some of the requests.
  DrawRequest MakeRequest(int32_t vocab, Logits kind) {
    DrawRequest request;
    SamplingParams& params = request.params;
    params.temperature = random_() % 4 == 0 ? 0.0F : Uniform(0.1F, 2.0F);
    if (random_() % 16 == 0) params.temperature = 1e-6F;
    if (random_() % 3 == 0) {
      params.top_k = 1 + static_cast<int32_t>(random_() % (random_() % 2 == 0 ? 60 : 3000));
    }
    if (random_() % 3 == 0) params.top_p = random_() % 8 == 0 ? 1e-7F : Uniform(0.05F, 1.0F);
    if (random_() % 4 == 0) params.min_p = random_() % 4 == 0 ? 1.0F : Uniform(0.0F, 0.3F);
    if (random_() % 3 == 0) params.repetition_penalty = Uniform(0.5F, 2.0F);
    if (random_() % 3 == 0) params.presence_penalty = Uniform(-2.0F, 2.0F);
    if (random_() % 3 == 0) params.frequency_penalty = Uniform(-2.0F, 2.0F);
    if (random_() % 3 == 0) {
      std::vector<int32_t> ids = Tokens(20, vocab);
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      for (const int32_t id : ids) params.logit_bias.push_back({id, Uniform(-100.0F, 100.0F)});
    }
    if (random_() % 2 == 0) params.logprobs = static_cast<int32_t>(random_() % 21);
    request.seed = random_() | static_cast<uint64_t>(random_()) << 32;
    // Few different tokens, so that counts add up.
    const std::vector<int32_t> some = Tokens(6, vocab);
    auto pick = [&](size_t count) {
      std::vector<int32_t> tokens(count);
      for (int32_t& token : tokens) token = some[random_() % some.size()];
      return tokens;
    };
    request.prompt = pick(1 + random_() % 9);
    request.output = pick(random_() % 9);
    request.drafts = pick(random_() % 4);
    const size_t rows = 1 + request.drafts.size();
    if (random_() % 3 == 0) {
      request.masks.resize(rows * MaskWords(vocab));
      const uint32_t density = random_() % 3;
      for (uint32_t& word : request.masks) {
        word = random_();
        if (density == 0) word &= random_() & random_() & random_();
        if (density == 1) word |= random_() | random_();
      }
    }
    for (size_t j = 0; j < rows; ++j) request.logits.push_back(MakeLogits(kind, vocab));
    return request;
  }

  static std::string Describe(const DrawRequest& request, size_t row) {
    const SamplingParams& params = request.params;
    return fmt::format(
        "row {}: temperature {}, top_k {}, top_p {}, min_p {}, penalties {} {} {}, {} biases, {}",
        row, params.temperature, params.top_k, params.top_p, params.min_p,
        params.repetition_penalty, params.presence_penalty, params.frequency_penalty,
        params.logit_bias.size(), request.masks.empty() ? "no mask" : "mask");
  }

  /// Tokens, ranks and ids exactly, log-probabilities to rounding.
  static void Compare(const DrawRequest& request, const std::vector<DrawnToken>& got, int32_t vocab,
                      bool processed, const std::string& where) {
    const std::vector<DrawnToken> wanted = DrawOnTheCpu(request, vocab, processed);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t j = 0; j < wanted.size(); ++j) {
      ASSERT_EQ(got[j].token, wanted[j].token) << where << ", " << Describe(request, j);
      if (!wanted[j].logprobs) continue;
      const PositionLogprobs& a = *got[j].logprobs;
      const PositionLogprobs& b = *wanted[j].logprobs;
      auto near = [](float x, float y) {
        return x == y || (std::isnan(x) && std::isnan(y)) ||
               std::abs(x - y) <= 2e-5F * (1 + std::abs(y));
      };
      EXPECT_EQ(a.rank, b.rank) << where << ", " << Describe(request, j);
      EXPECT_TRUE(near(a.chosen.logprob, b.chosen.logprob))
          << a.chosen.logprob << " and " << b.chosen.logprob << ", " << where << ", "
          << Describe(request, j);
      ASSERT_EQ(a.top.size(), b.top.size());
      for (size_t i = 0; i < b.top.size(); ++i) {
        ASSERT_EQ(a.top[i].token_id, b.top[i].token_id)
            << "place " << i << ", " << where << ", " << Describe(request, j);
        ASSERT_TRUE(near(a.top[i].logprob, b.top[i].logprob))
            << a.top[i].logprob << " and " << b.top[i].logprob << ", place " << i << ", " << where
            << ", " << Describe(request, j);
      }
    }
  }

  static std::vector<const DrawRequest*> Pointers(const std::vector<DrawRequest>& requests) {
    std::vector<const DrawRequest*> pointers;
    for (const DrawRequest& request : requests) pointers.push_back(&request);
    return pointers;
  }

  std::mt19937 random_{41};
};

TEST_F(DrawTest, DrawsTheCpusTokens) {
  for (const int32_t vocab : {1, 2, 31, 33, 256, 257, 1000, 2048, 32000, 154880}) {
    for (const Logits kind : kAllLogits) {
      // NaN has no rank or log-probability worth the name: tokens alone are compared.
      const bool holes = kind == Logits::kHoles;
      std::vector<DrawRequest> requests;
      const int count = vocab > 10000 ? 6 : 24;
      for (int i = 0; i < count; ++i) {
        requests.push_back(MakeRequest(vocab, kind));
        if (holes) requests.back().params.logprobs.reset();
      }
      const bool processed = random_() % 2 == 0;
      const auto got = DrawBatch(Pointers(requests), vocab).Run(processed);
      for (size_t i = 0; i < requests.size(); ++i) {
        Compare(
            requests[i], got[i], vocab, processed,
            fmt::format("vocabulary {}, kind {}, request {}", vocab, static_cast<int>(kind), i));
      }
      if (HasFatalFailure()) return;
    }
  }
}

// The two cuts that end within many equal logits, and right at a token.
TEST_F(DrawTest, CutsEndWithinTies) {
  constexpr int32_t kVocab = 4000;
  std::vector<DrawRequest> requests;
  for (const int32_t top_k : {0, 1, 2, 31, 999, 1000, 1001, 3999, 4000, 4001}) {
    for (const float top_p : {1.0F, 0.999F, 0.5F, 0.25F, 0.125F, 0.1F, 1e-9F}) {
      for (const Logits kind : {Logits::kEqual, Logits::kTied}) {
        DrawRequest request;
        request.params.top_k = top_k;
        request.params.top_p = top_p;
        request.seed = random_();
        request.prompt = {1};
        request.drafts = {1, 2, 3};
        for (int j = 0; j < 4; ++j) request.logits.push_back(MakeLogits(kind, kVocab));
        requests.push_back(std::move(request));
      }
    }
  }
  const auto got = DrawBatch(Pointers(requests), kVocab).Run(false);
  for (size_t i = 0; i < requests.size(); ++i) {
    Compare(requests[i], got[i], kVocab, false, fmt::format("request {}", i));
  }
}

TEST_F(DrawTest, TellsDeadEndsFromOverflow) {
  constexpr int32_t kVocab = 300;
  auto make = [&](float temperature) {
    DrawRequest request;
    request.params.temperature = temperature;
    request.prompt = {1};
    request.logits.push_back(MakeLogits(Logits::kNormal, kVocab));
    return request;
  };
  for (const float temperature : {0.0F, 1.0F}) {
    std::vector<DrawRequest> requests;
    requests.push_back(make(temperature));  // nothing is allowed
    requests.back().masks.assign(MaskWords(kVocab), 0);
    requests.push_back(make(temperature));  // an infinite logit
    requests.back().logits[0][17] = kInfinity;
    requests.push_back(make(temperature));  // nothing but -infinity
    requests.back().logits[0].assign(kVocab, -kInfinity);
    requests.push_back(make(temperature));  // nothing but NaN
    requests.back().logits[0].assign(kVocab, kNaN);
    requests.push_back(make(temperature));  // an infinite logit that is masked
    requests.back().logits[0][17] = kInfinity;
    requests.back().masks.assign(MaskWords(kVocab), ~0U);
    requests.back().masks[0] &= ~(1U << 17);
    for (const int32_t at : {0, 17, 299}) {  // one NaN, allowed or not, however tokens are drawn
      requests.push_back(make(temperature));
      requests.back().logits[0][at] = kNaN;
      requests.push_back(requests.back());
      requests.back().masks.assign(MaskWords(kVocab), ~0U);
      requests.back().masks[at / 32] &= ~(1U << at % 32);
      requests.push_back(make(temperature));
      requests.back().logits[0][at] = -kNaN;
      requests.back().params.top_k = 5;
      requests.push_back(requests.back());
      requests.back().params.top_k = 0;
      requests.back().params.logprobs = 3;
    }
    const auto got = DrawBatch(Pointers(requests), kVocab).Run(false);
    EXPECT_EQ(got[0][0].token, kDrawDeadEnd);
    EXPECT_EQ(got[1][0].token, kDrawOverflown);
    EXPECT_EQ(got[2][0].token, kDrawOverflown);
    EXPECT_EQ(got[3][0].token, kDrawOverflown);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i >= 4) EXPECT_EQ(got[i][0].token, kDrawOverflown) << i;
      Compare(requests[i], got[i], kVocab, false, fmt::format("case {}", i));
    }
  }
}

TEST_F(DrawTest, BitsDoNotDependOnOtherRows) {
  constexpr int32_t kVocab = 32000;
  std::vector<DrawRequest> requests;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(MakeRequest(kVocab, kAllLogits[i % 6]));
    requests.back().params.logprobs = i % 20;
  }
  auto equal = [](const std::vector<DrawnToken>& a, const std::vector<DrawnToken>& b) {
    for (size_t j = 0; j < a.size(); ++j) {
      if (a[j].token != b[j].token) return false;
      if (a[j].token < 0) continue;
      if (a[j].logprobs->rank != b[j].logprobs->rank ||
          !SameBits(a[j].logprobs->chosen.logprob, b[j].logprobs->chosen.logprob)) {
        return false;
      }
      for (size_t i = 0; i < a[j].logprobs->top.size(); ++i) {
        if (a[j].logprobs->top[i].token_id != b[j].logprobs->top[i].token_id ||
            !SameBits(a[j].logprobs->top[i].logprob, b[j].logprobs->top[i].logprob)) {
          return false;
        }
      }
    }
    return true;
  };
  for (const bool processed : {false, true}) {
    const DrawBatch batch(Pointers(requests), kVocab);
    const auto all = batch.Run(processed);
    const auto replayed = batch.Run(processed, /*replays=*/3);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(equal(all[i], replayed[i])) << "replayed, request " << i;
      if (i % 5 == 0) {
        const auto alone = DrawBatch({&requests[i]}, kVocab, /*spare_rows=*/3).Run(processed);
        EXPECT_TRUE(equal(all[i], alone[0])) << "alone, request " << i;
      }
    }
    std::vector<const DrawRequest*> reversed = Pointers(requests);
    std::reverse(reversed.begin(), reversed.end());
    const auto backwards = DrawBatch(reversed, kVocab, /*spare_rows=*/5).Run(processed);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(equal(all[i], backwards[requests.size() - 1 - i])) << "reversed, request " << i;
    }
  }
}

TEST_F(DrawTest, TokensGoToTheirPlaces) {
  constexpr int32_t kVocab = 1000;
  std::vector<DrawRequest> requests;
  for (int i = 0; i < 9; ++i) requests.push_back(MakeRequest(kVocab, kAllLogits[i % 6]));
  const DrawBatch batch(Pointers(requests), kVocab);
  std::vector<int32_t> want;
  for (const std::vector<DrawnToken>& rows : batch.Run(false)) {
    for (const DrawnToken& row : rows) want.push_back(row.token);
  }
  std::vector<int32_t> places;
  for (size_t i = 0; i < want.size(); ++i) places.push_back(static_cast<int32_t>(2 * i + 1));
  std::shuffle(places.begin(), places.end(), random_);
  const DeviceArray<int32_t> at(places);
  const DeviceArray<int32_t> tokens(std::vector<int32_t>(2 * want.size() + 1, -7));
  DrawResults results = batch.Results();
  results.tokens = tokens.data();
  results.places = at.data();
  CudaOk(DrawTokens(batch.Params(false), results, nullptr), "DrawTokens");
  CudaOk(cudaDeviceSynchronize(), "run");
  std::vector<int32_t> got = tokens.Download();
  for (size_t i = 0; i < want.size(); ++i) {
    int32_t& token = got[static_cast<size_t>(places[i])];
    EXPECT_EQ(token, want[i]) << i;
    token = -7;
  }
  EXPECT_EQ(std::count(got.begin(), got.end(), -7), std::ssize(got));
}

// The likeliest token and the winner of the race, from parts that begin at multiples of 32. Also
// where a logit overflows in one part, or a value does and its logit does not.
TEST_F(DrawTest, PartsOfTheVocabularyGiveTheTokenOfTheWhole) {
  for (const int32_t vocab : {257, 1000, 32000, 154880}) {
    std::vector<DrawRequest> requests;
    for (int i = 0; i < 40; ++i) {
      DrawRequest request;
      request.params.temperature = i % 3 == 0 ? 0.0F : i % 7 == 1 ? 1e-38F : Uniform(0.1F, 2.0F);
      request.seed = random_();
      request.prompt = {1, 2};
      request.logits.push_back(MakeLogits(kAllLogits[i % 7], vocab));
      std::vector<float>& row = request.logits.front();
      if (i % 5 == 2) row[random_() % row.size()] = i % 2 == 0 ? kNaN : kInfinity;
      if (i % 10 == 6) row.assign(row.size(), -kInfinity);
      EXPECT_TRUE(DrawsByShares({.temperature = request.params.temperature}));
      requests.push_back(std::move(request));
    }
    const DrawBatch batch(Pointers(requests), vocab);
    const auto whole = batch.Run(false);
    const auto rows = static_cast<int>(requests.size());
    for (const int parts : {1, 2, 3, 8}) {
      const DeviceArray<DrawnShare> shares(static_cast<size_t>(rows * parts), 0x5A);
      const DeviceArray<DrawnShare> of_part(static_cast<size_t>(rows), 0x5A);
      int32_t first = 0;
      for (int part = 0; part < parts; ++part) {
        const int32_t end = part + 1 == parts ? vocab : vocab * (part + 1) / parts / 32 * 32;
        DrawParams params = batch.Params(false);
        params.logits += first;
        params.first_token = first;
        params.vocab_size = end - first;
        DrawResults results;
        results.shares = of_part.data();
        CudaOk(DrawTokens(params, results, nullptr), "DrawTokens");
        CudaOk(cudaMemcpy2D(shares.data() + part, sizeof(DrawnShare) * static_cast<size_t>(parts),
                            of_part.data(), sizeof(DrawnShare), sizeof(DrawnShare),
                            static_cast<size_t>(rows), cudaMemcpyDeviceToDevice),
               "a part");
        first = end;
      }
      const DeviceArray<int32_t> tokens(static_cast<size_t>(rows), 0x5A);
      DrawResults chosen;
      chosen.tokens = tokens.data();
      CudaOk(ChooseAmongShares(shares.data(), rows, parts, parts, chosen, nullptr), "choice");
      const std::vector<int32_t> got = tokens.Download();
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], whole[i][0].token)
            << "vocabulary " << vocab << ", " << parts << " parts, request " << i;
      }
    }
  }
}

// Small enough for tools that watch every access.
TEST_F(DrawTest, SmallForTheSanitizer) {
  constexpr int32_t kVocab = 130;
  std::vector<DrawRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(MakeRequest(kVocab, Logits::kNormal));
  const auto got = DrawBatch(Pointers(requests), kVocab, 1).Run(true);
  for (size_t i = 0; i < requests.size(); ++i) {
    Compare(requests[i], got[i], kVocab, true, fmt::format("request {}", i));
  }
}

TEST(DrawArguments, AreRefusedWithWhatWouldBeRight) {
  const DrawParams good = {.max_rows = 1, .vocab_size = 1000, .logits_stride = 1000};
  auto refused = [&](auto change) {
    DrawParams params = good;
    change(params);
    EXPECT_THROW(static_cast<void>(DrawTokens(params, {}, nullptr)), Error);
  };
  refused([](DrawParams& p) { p.vocab_size = 0; });
  refused([](DrawParams& p) { p.vocab_size = 400'001; });
  refused([](DrawParams& p) { p.logits_stride = 996; });
  refused([](DrawParams& p) { p.logits_stride = 1002; });
  refused([](DrawParams& p) { p.max_top_logprobs = 129; });
  refused([](DrawParams& p) { p.max_rows = -1; });
}

}  // namespace
}  // namespace outrider::cuda
