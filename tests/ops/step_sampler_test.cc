// The sampling of a step, one call for all requests, against each request's rows on their own.
#include "outrider/ops/step_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/sampling/token_mask.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {
namespace {

constexpr int64_t kSamplerHidden = 32;
constexpr int32_t kSamplerVocab = 300;

class StepSamplerTest : public KernelTest {
 protected:
  StepSamplerTest() {
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const auto loader = ops.MakeWeightLoader(*source, {.compute_dtype = DType::kF32});
    loader->Matrix(&head, "lm_head.weight", kSamplerVocab, kSamplerHidden);
    memory = loader->Load({ops, &pool}, nullptr);
  }

  Context MakeContext() { return {{ops, &pool}, arena, DType::kF32}; }

  /// Hidden rows, of which a step's rows of logits are every second one.
  void MakeRows(int32_t count) {
    x = TestMatrix::Random(2 * count, kSamplerHidden, random);
    rows.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = 2 * i + 1;
    logits = TestMatrix(count, kSamplerVocab);
    ops.Head(MakeContext(), x.view(), rows, head, logits.view());
  }
  HeadRows Rows() { return {head, x.view(), rows}; }
  std::span<const float> LogitsOf(int64_t row, int64_t cols = kSamplerVocab) {
    return {logits.view().row(row), static_cast<size_t>(cols)};
  }

  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  Arena arena;
  Weight head;
  std::unique_ptr<WeightMemory> memory;
  TestMatrix x{0, 0};
  TestMatrix logits{0, 0};
  std::vector<int32_t> rows;
};

// 90 requests of 1 to 5 rows: more than a tile of logits.
TEST_P(StepSamplerTest, VerifyGivesEveryRequestWhatItsRowsGiveAlone) {
  for (const bool all_greedy : {true, false}) {
    struct Each {
      SamplingParams params;
      std::vector<int32_t> tokens;
      std::vector<int32_t> drafts;
      std::vector<uint32_t> masks;
      int32_t first_row = 0;
      VerifiedTokens got;
    };
    std::vector<Each> each(90);
    int32_t num_rows = 0;
    for (Each& e : each) {
      e.params.temperature = all_greedy || Pick(0, 2) == 0 ? 0.0F : 0.7F;
      if (!all_greedy && Pick(0, 3) == 0) e.params.logprobs = 2;
      e.tokens.assign(static_cast<size_t>(Pick(1, 9)), 7);
      e.first_row = num_rows;
      num_rows += 1 + Pick(0, 4);
      e.drafts.resize(static_cast<size_t>(num_rows - e.first_row) - 1);
    }
    MakeRows(num_rows);
    for (size_t i = 0; i < each.size(); ++i) {
      Each& e = each[i];
      // Often the draft that will be drawn.
      for (size_t j = 0; j < e.drafts.size(); ++j) {
        Sampler sampler;
        const NoiseKey noise{i, static_cast<int64_t>(e.tokens.size() + j)};
        e.drafts[j] =
            Pick(0, 3) == 0
                ? Pick(0, kSamplerVocab - 1)
                : sampler.Sample(e.params, noise, LogitsOf(e.first_row + static_cast<int64_t>(j)));
      }
      if (!all_greedy && Pick(0, 4) == 0) {
        e.masks.assign((e.drafts.size() + 1) * MaskWords(kSamplerVocab), 0x0f0f0f0f);
      }
    }
    std::vector<VerifyRequest> requests;
    for (size_t i = 0; i < each.size(); ++i) {
      Each& e = each[i];
      VerifyRequest r{.input = {.params = &e.params,
                                .seed = i,
                                .tokens = e.tokens,
                                .prompt_length = 1,
                                .drafts = e.drafts},
                      .first_row = e.first_row,
                      .result = &e.got};
      if (!e.masks.empty()) {
        r.input.masks = {e.masks.data(), r.num_rows(),
                         static_cast<int64_t>(MaskWords(kSamplerVocab))};
      }
      requests.push_back(r);
    }
    const auto sampler = ops.MakeSampler({ops, &pool}, Verifier());
    sampler->Verify(MakeContext(), Rows(), requests);
    int accepted = 0;
    for (size_t i = 0; i < each.size(); ++i) {
      VerifyInput alone = requests[i].input;
      alone.logits = logits.view().Rows(each[i].first_row, requests[i].num_rows());
      VerifiedTokens want;
      Verifier().Verify(alone, &want);
      EXPECT_EQ(each[i].got.tokens, want.tokens) << i;
      EXPECT_EQ(each[i].got.num_accepted, want.num_accepted) << i;
      ASSERT_EQ(each[i].got.logprobs.size(), want.logprobs.size()) << i;
      for (size_t t = 0; t < want.logprobs.size(); ++t) {
        EXPECT_EQ(each[i].got.logprobs[t].chosen.logprob, want.logprobs[t].chosen.logprob);
      }
      accepted += want.num_accepted;
    }
    EXPECT_GT(accepted, 30);
    EXPECT_GT(sampler->head_seconds(), 0);
  }
}

TEST_P(StepSamplerTest, DrawAndScore) {
  constexpr int32_t kTokens = 200;  // of the vocabulary
  MakeRows(150);
  SamplingParams params;
  params.temperature = 1.3F;
  params.top_k = 40;
  std::vector<DrawRequest> draws(rows.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    draws[i].draw = {.seed = i, .position = 5};
    if (i % 3 != 0) draws[i].sampling = &params;
  }
  const auto sampler = ops.MakeSampler({ops, &pool}, Verifier());
  std::vector<TokenRef> tokens(rows.size());
  sampler->Draw(MakeContext(), Rows(), draws, {.rows = kTokens}, tokens);
  std::vector<PositionLogprobs> scores(rows.size());
  std::vector<ScoreRequest> wanted;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto part = LogitsOf(static_cast<int64_t>(i), kTokens);
    const auto likeliest = std::max_element(part.begin(), part.end()) - part.begin();
    EXPECT_EQ(tokens[i], i % 3 == 0 ? likeliest : Sampler().Sample(params, {i, 5}, part)) << i;
    wanted.push_back({.token = tokens[i].token(), .num_top = 3, .result = &scores[i]});
  }
  sampler->Score(MakeContext(), Rows(), wanted);
  for (size_t i = 0; i < rows.size(); ++i) {
    const PositionLogprobs want =
        ComputeLogprobs(LogitsOf(static_cast<int64_t>(i)), tokens[i].token(), 3);
    EXPECT_EQ(scores[i].chosen.logprob, want.chosen.logprob) << i;
    EXPECT_EQ(scores[i].rank, want.rank) << i;
    EXPECT_EQ(scores[i].top.size(), 3U);
  }
}

// A drafter's head over some of the tokens, in an order of its own.
TEST_P(StepSamplerTest, DrawAmongTokensOfRows) {
  constexpr int32_t kRows = 90;
  constexpr int32_t kTargetVocab = 1000;
  std::vector<int32_t> ids(kRows);
  for (int32_t i = 0; i < kRows; ++i) ids[static_cast<size_t>(i)] = (7 + 11 * i) % kTargetVocab;
  MakeRows(80);
  SamplingParams params;
  params.temperature = 1.1F;
  params.min_p = 0.02F;
  std::vector<DrawRequest> draws(rows.size());
  std::vector<std::vector<float>> probs(rows.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    draws[i].draw = {.seed = i, .position = 9};
    if (i % 3 != 0) draws[i].sampling = &params;
    if (i % 3 == 2) {
      probs[i].resize(kTargetVocab);
      draws[i].draw.probs = probs[i];
    }
  }
  const auto sampler = ops.MakeSampler({ops, &pool}, Verifier());
  std::vector<TokenRef> tokens(rows.size());
  sampler->Draw(MakeContext(), Rows(), draws,
                {.rows = kRows, .ids = ids, .vocab_size = kTargetVocab}, tokens);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> by_token(kTargetVocab, -std::numeric_limits<float>::infinity());
    for (size_t j = 0; j < ids.size(); ++j) {
      by_token[static_cast<size_t>(ids[j])] = LogitsOf(static_cast<int64_t>(i))[j];
    }
    const auto likeliest = std::max_element(by_token.begin(), by_token.end()) - by_token.begin();
    std::vector<float> want_probs(probs[i].size());
    DraftDraw draw{.seed = i, .position = 9, .probs = want_probs};
    Sampler alone;
    EXPECT_EQ(tokens[i], i % 3 == 0 ? likeliest : DrawDraft(alone, params, draw, by_token)) << i;
    EXPECT_EQ(probs[i], want_probs) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, StepSamplerTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
