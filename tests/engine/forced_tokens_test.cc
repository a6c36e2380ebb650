// An output that is given is scored as if the model had written it.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "outrider/base/error.h"
#include "tests/engine/scenario_requests.h"

namespace outrider {
namespace {

GenerationRequest Forced(GenerationRequest request, std::vector<int32_t> tokens) {
  request.sampling.temperature = 0;
  request.sampling.max_tokens = static_cast<int32_t>(tokens.size());
  request.grammar.forced_tokens = std::move(tokens);
  return request;
}

class ForcedTokensTest : public testing::TestWithParam<DrafterKind> {};

TEST_P(ForcedTokensTest, ScoresAreTheLogprobsOfGeneration) {
  std::vector<GenerationRequest> drawn;
  for (std::vector<int32_t>& prompt : TrainedPrompts()) {
    drawn.push_back(Request(std::move(prompt), 30, drawn.size() % 2 == 0 ? 1.0F : 0.0F));
  }
  drawn.push_back(Request(RandomTokens(3, 70), 30, 1.3F));
  const std::vector<Generated> generated = RunAlone(drawn);
  std::vector<GenerationRequest> given;
  for (size_t i = 0; i < drawn.size(); ++i) {
    given.push_back(Forced(drawn[i], generated[i].tokens));
  }
  const auto engine = MakeTestEngine({.drafter = GetParam(), .k = 3});
  ExpectEqual(RunTogether(*engine, given), generated);
}

TEST_P(ForcedTokensTest, TokensThatTheModelWouldNotWriteAreScoredToo) {
  const auto engine = MakeTestEngine({.drafter = GetParam(), .k = 3});
  const std::vector<int32_t> prompt = TrainedPrompts().front();
  std::vector<int32_t> answer = RandomTokens(8, 12);
  answer[5] = 1;  // the model's end, in the middle
  const std::vector<Generated> results =
      RunTogether(*engine, {Forced(Request(prompt), answer), Request(prompt, 4)});
  EXPECT_EQ(results[0].tokens, answer);
  ASSERT_EQ(results[0].logprobs.size(), answer.size());
  EXPECT_LT(results[0].logprobs[0].chosen.logprob, results[1].logprobs[0].chosen.logprob);
  EXPECT_EQ(results[0].finish_reason, FinishReason::kLength);
}

INSTANTIATE_TEST_SUITE_P(Drafters, ForcedTokensTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated, DrafterKind::kNgram),
                         [](const auto& test) {
                           switch (test.param) {
                             case DrafterKind::kNone:
                               return "None";
                             case DrafterKind::kChain:
                               return "Chain";
                             case DrafterKind::kRepeated:
                               return "Repeated";
                             default:
                               return "Ngram";
                           }
                         });

TEST(ForcedTokensErrorTest, IdsThatTheModelLacksAreRefused) {
  const auto engine = MakeTestEngine({.drafter = DrafterKind::kNone});
  const int32_t vocab = engine->vocab_size();
  for (const int32_t id : {vocab, -1}) {
    EXPECT_EQ(
        RefusalOf(*engine, Forced(Request({7, 8}), {id})),
        fmt::format("the answer holds token id {}: ids of this model are 0 to {}", id, vocab - 1));
  }
  EXPECT_EQ(RefusalOf(*engine, Forced(Request({7, 8}), {vocab - 1})), "");
}

}  // namespace
}  // namespace outrider
