// A slot's state: what a step's tokens make of it, and that nothing of an earlier life is left.
#include "outrider/execute/request_slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::array<int32_t, 1> kEos = {kBundledEos};

std::shared_ptr<RequestParameters> Parameters(int32_t max_total_tokens = 20) {
  auto parameters = std::make_shared<RequestParameters>();
  parameters->prompt_length = 2;
  parameters->max_total_tokens = max_total_tokens;
  return parameters;
}

RequestSlot Admitted(std::shared_ptr<const RequestParameters> parameters,
                     const std::vector<int32_t>& tokens = {8, 9}) {
  RequestSlot slot;
  slot.Admit({.parameters = std::move(parameters), .tokens = tokens}, kEos, kBundledVocab,
             /*most_behind=*/0);
  return slot;
}

RequestResult Taken(RequestSlot& slot, std::vector<int32_t> tokens, bool dead_end = false) {
  RequestResult result;
  result.verified.tokens = std::move(tokens);
  result.verified.dead_end = dead_end;
  slot.Take(slot.tokens.size(), kEos, result);
  return result;
}

TEST(RequestSlotTest, TokensAreTakenUpToTheOneThatEndsTheRequest) {
  RequestSlot slot = Admitted(Parameters());
  Taken(slot, {20, 21});
  EXPECT_FALSE(slot.ended);
  Taken(slot, {22, kBundledEos, 23});
  EXPECT_TRUE(slot.ended);
  EXPECT_THAT(slot.tokens, ElementsAre(8, 9, 20, 21, 22, kBundledEos));

  auto stops = Parameters();
  stops->sampling.ignore_eos = true;
  stops->sampling.stop_token_ids = {30};
  RequestSlot stopped = Admitted(stops);
  Taken(stopped, {kBundledEos, 30, 31});
  EXPECT_TRUE(stopped.ended);
  EXPECT_THAT(stopped.tokens, ElementsAre(8, 9, kBundledEos, 30));
}

TEST(RequestSlotTest, ItEndsAtItsLengthAndAtADeadEnd) {
  RequestSlot slot = Admitted(Parameters(/*max_total_tokens=*/5));
  EXPECT_EQ(slot.UsefulDrafts(3), 2);
  Taken(slot, {20});
  EXPECT_EQ(slot.UsefulDrafts(3), 1);
  Taken(slot, {21, 22, 23});
  EXPECT_TRUE(slot.ended);
  EXPECT_EQ(slot.num_tokens(), 5);
  RequestSlot dead = Admitted(Parameters());
  Taken(dead, {20}, /*dead_end=*/true);
  EXPECT_TRUE(dead.ended);
}

TEST(RequestSlotTest, TheGrammarFollowsWhatWasTaken) {
  auto parameters = Parameters();
  parameters->grammar.grammar = CompileText(GrammarKind::kRegex, "ab");
  RequestSlot slot = Admitted(parameters);
  EXPECT_FALSE(Taken(slot, Tokens("a")).grammar_complete);
  const RequestResult whole = Taken(slot, Tokens("b"));
  EXPECT_TRUE(whole.grammar_complete);
  EXPECT_FALSE(whole.grammar_failed);
  RequestSlot other = Admitted(parameters);
  EXPECT_TRUE(Taken(other, Tokens("x")).grammar_failed);
  EXPECT_TRUE(other.ended);
}

// A preempted request had drafts, of which others were accepted since, or none (vLLM #30916).
TEST(RequestSlotTest, NothingOfALifeBeforeIsLeft) {
  auto parameters = Parameters();
  parameters->grammar.grammar = CompileText(GrammarKind::kRegex, "abc");
  parameters->sampling.prompt_logprobs = 0;
  RequestSlot slot = Admitted(parameters);
  slot.prompt_logprobs.resize(1);
  EXPECT_EQ(Taken(slot, Tokens("a")).prompt_logprobs.size(), 1U);
  slot.drafts = {Tokens("b").front()};
  slot.draft_limit = DraftLimit::kGrammar;
  slot.draft_probs.resize(5);
  slot.num_computed = 3;
  slot.ended = true;
  const std::span<const int32_t> known = KnownTokens(slot.tokens);
  const std::vector<int32_t> tokens(known.begin(), known.end());
  slot.Release();
  EXPECT_EQ(slot.parameters, nullptr);
  slot.Admit({.parameters = parameters, .tokens = tokens, .cached_tokens = 1}, kEos, kBundledVocab,
             /*most_behind=*/0);
  EXPECT_THAT(slot.drafts, IsEmpty());
  EXPECT_EQ(slot.draft_limit, DraftLimit::kNone);
  EXPECT_THAT(slot.draft_probs, IsEmpty());
  EXPECT_THAT(slot.prompt_logprobs, IsEmpty());
  EXPECT_EQ(slot.num_computed, 1);
  EXPECT_FALSE(slot.ended);
  EXPECT_FALSE(slot.scores_prompt);  // its logprobs were delivered
  // The grammar stands after what was emitted.
  EXPECT_EQ(slot.grammar->CountAllowed(Tokens("a")), 0U);
  EXPECT_EQ(slot.grammar->CountAllowed(Tokens("b")), 1U);
}

}  // namespace
}  // namespace outrider
