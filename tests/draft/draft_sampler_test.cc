// Drafts of a part of the vocabulary: the most likely tokens of that part, or draws from the
// drafter's distribution over it.
#include "outrider/draft/draft_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "outrider/networks/mtp_draft_model.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr int64_t kRows = 3;

class DraftSamplerTest : public testing::TestWithParam<int32_t> {
 protected:
  DraftSamplerTest() : hidden_(static_cast<size_t>(kRows * model().hidden_size())) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& x : hidden_) x = normal(random);
    logits_.resize(static_cast<size_t>(kRows) * vocab());
    model().Logits(0, hidden(), rows_, {logits_.data(), kRows, model().vocab_size()});
  }

  static Network& model() {
    static const LoadedModel loaded(TinyModelDirectory());
    return *loaded.model;
  }
  static size_t vocab() { return static_cast<size_t>(model().vocab_size()); }
  MatrixView<const float> hidden() const { return {hidden_.data(), kRows, model().hidden_size()}; }

  /// Logits of the part of the vocabulary.
  std::span<const float> PartOfRow(size_t row) const {
    return {logits_.data() + row * vocab(), static_cast<size_t>(GetParam())};
  }

  /// Draft 0 of a request per row.
  std::vector<TokenRef> Sample(std::span<const DraftRequest> requests) {
    const std::vector<size_t> indices = {0, 1, 2};
    std::vector<TokenRef> drafts(kRows);
    MtpDraftModel modules(model(), GetParam());
    DraftSampler().Sample(modules, 0, hidden(), rows_, indices, requests, 0,
                          {drafts.data(), kRows, 1});
    return drafts;
  }

  std::vector<float> hidden_;
  std::vector<float> logits_;  // of the whole vocabulary
  std::vector<int32_t> rows_ = {0, 1, 2};
};

TEST_P(DraftSamplerTest, TheMostLikelyOfTheFirstTokens) {
  const std::vector<int32_t> tokens = {1};
  const DraftRequest request{.tokens = tokens};
  const std::vector<TokenRef> drafts = Sample(std::vector(kRows, request));
  for (size_t r = 0; r < kRows; ++r) {
    const auto part = PartOfRow(r);
    EXPECT_EQ(drafts[r], std::max_element(part.begin(), part.end()) - part.begin());
  }
}

TEST_P(DraftSamplerTest, DrawsWithTheTargetsNoiseAreWhatItWouldDrawFromTheFirstTokens) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  SamplingParams params;
  params.temperature = 1.5F;
  params.top_k = 40;
  std::vector<DraftRequest> requests(kRows);
  for (size_t r = 0; r < kRows; ++r) {
    requests[r].tokens = tokens;
    requests[r].sampling = r == 1 ? nullptr : &params;  // the most likely token among draws
    requests[r].seed = r;
  }
  const std::vector<TokenRef> drafts = Sample(requests);
  for (size_t r = 0; r < kRows; ++r) {
    const auto part = PartOfRow(r);
    EXPECT_EQ(drafts[r], r == 1 ? std::max_element(part.begin(), part.end()) - part.begin()
                                : Sampler().Sample(params, {r, 3}, part));
  }
}

TEST_P(DraftSamplerTest, DrawsForRejectionSamplingLeaveTheirDistribution) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  SamplingParams params;
  params.temperature = 1.5F;
  params.top_p = 0.8F;
  // What was left there by an earlier draft.
  std::vector<float> probs(static_cast<size_t>(kRows) * vocab(), 0.25F);
  std::vector<DraftRequest> requests(kRows);
  for (size_t r = 0; r < kRows; ++r) {
    requests[r].tokens = tokens;
    requests[r].sampling = &params;
    requests[r].draft_probs = probs.data() + r * vocab();
    requests[r].seed = r;
  }
  const std::vector<TokenRef> drafts = Sample(requests);
  for (size_t r = 0; r < kRows; ++r) {
    const auto part = PartOfRow(r);
    EXPECT_EQ(drafts[r], Sampler().Sample(params, {r, 3, RandomStream::kDraft}, part));
    const std::span<const float> q(requests[r].draft_probs, vocab());
    std::vector<float> processed(part.size());
    Sampler().Process(params, part, processed);
    double total = 0;
    for (const float x : processed) total += std::exp(x);
    for (size_t i = 0; i < vocab(); ++i) {
      ASSERT_NEAR(q[i], i < part.size() ? std::exp(processed[i]) / total : 0, 1e-6) << i;
    }
    EXPECT_GT(q[static_cast<size_t>(drafts[r].token())], 0);
  }
}

TEST(DrawDraftTest, OverflownRowsGiveACertainDraft) {
  const SamplingParams params;
  const std::vector<float> logits(4, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> q(6, 0.5F);
  Sampler sampler;
  EXPECT_EQ(DrawDraft(sampler, params, {.seed = 0, .position = 1, .probs = q}, logits), 0);
  EXPECT_EQ(q, (std::vector<float>{1, 0, 0, 0, 0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Parts, DraftSamplerTest, testing::Values(1, 16, 300, 1001, 2048));

}  // namespace
}  // namespace outrider
