// Requests that share cache blocks which modules have not finished: whoever catches up, in whatever
// order and company, the drafter's cache equals a recomputation from scratch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/draft/drafter_crowd.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

class SharedBlocksTest : public testing::TestWithParam<DrafterCase> {
 protected:
  int32_t Below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  int32_t Token() { return 6 + Below(1500); }
  std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(Token());
    return tokens;
  }
  /// The first tokens of `text`, and `own` others.
  std::vector<int32_t> Beginning(const std::vector<int32_t>& text, int32_t count, int32_t own) {
    std::vector<int32_t> tokens(text.begin(), text.begin() + count);
    for (const int32_t token : Tokens(own)) tokens.push_back(token);
    return tokens;
  }
  static std::vector<int32_t> First(const std::vector<int32_t>& blocks, int32_t count) {
    return {blocks.begin(), blocks.begin() + count};
  }
  /// All of a prompt at once, without modules.
  void RunPrompt(DrafterCrowd& crowd, size_t i) {
    crowd.Step({{.member = i, .count = crowd.prompt_left(i), .next = Token()}}, 0);
  }

  std::mt19937 random_{5};
};

// The one whose modules are many rows behind catches up apart, and finishes the shared blocks;
// the other one's few rows, which begin in these, run in the pass.
TEST_P(SharedBlocksTest, FewRowsBesideManyInOnePass) {
  const int32_t k = GetParam().k;
  for (const bool few_first : {true, false}) {
    DrafterCrowd crowd(GetParam(), 4, 128);
    const std::vector<int32_t> text = Tokens(44);
    const size_t source = crowd.Join(text, {}, 60);
    RunPrompt(crowd, source);
    crowd.Finish(source);
    const size_t many = crowd.Join(Beginning(text, 44, 60), First(crowd.blocks(source), 10), 140);
    const size_t few = crowd.Join(Beginning(text, 44, 2), First(crowd.blocks(source), 10), 80);
    RunPrompt(crowd, many);
    RunPrompt(crowd, few);
    EXPECT_EQ(crowd.FinalEnd(few, 0), 0);
    using Part = DrafterCrowd::Part;
    for (const int32_t depth : {0, k, k, 0, k}) {
      std::vector<Part> parts;
      for (const size_t i : {few_first ? few : many, few_first ? many : few}) {
        parts.push_back({.member = i, .accepted = crowd.num_drafts(i) / 2, .next = Token()});
      }
      crowd.Step(parts, depth);
      for (const size_t i : {few, many}) {
        ASSERT_NO_FATAL_FAILURE(crowd.ExpectEqualsRecomputation(i));
      }
    }
    EXPECT_GE(crowd.FinalEnd(few, 0), 40);
    EXPECT_GE(crowd.FinalEnd(many, 0), 100);
  }
}

// One catches up and ends: the shared blocks are finished. The other goes on much later.
TEST_P(SharedBlocksTest, OneAfterTheOtherHasEnded) {
  const int32_t k = GetParam().k;
  DrafterCrowd crowd(GetParam(), 4, 128);
  const std::vector<int32_t> text = Tokens(30);
  const size_t first = crowd.Join(text, {}, 60);
  RunPrompt(crowd, first);
  const size_t second = crowd.Join(Beginning(text, 28, 3), First(crowd.blocks(first), 6), 60);
  RunPrompt(crowd, second);
  crowd.Step({{.member = first, .next = Token()}}, 1);
  crowd.Step({{.member = first, .next = Token()}}, k);
  crowd.Finish(first);
  for (const int32_t depth : {0, 0, k}) crowd.Step({{.member = second, .next = Token()}}, depth);
  ASSERT_NO_FATAL_FAILURE(crowd.ExpectEqualsRecomputation(second));
  EXPECT_GE(crowd.FinalEnd(second, 0), 30);
  crowd.Drop(first);
  const size_t third = crowd.Join(Beginning(text, 28, 5), First(crowd.blocks(second), 6), 60);
  RunPrompt(crowd, third);
  crowd.Step({{.member = third, .next = Token()}, {.member = second, .next = Token()}}, k);
  for (const size_t i : {second, third}) {
    ASSERT_NO_FATAL_FAILURE(crowd.ExpectEqualsRecomputation(i));
  }
}

// Two requests computed one prefix; a third one found some blocks of each. Modules have finished
// those of the second alone, so the blocks that they have to catch up on are not adjacent.
TEST_P(SharedBlocksTest, BlocksOfOnePrefixFromTwoRequests) {
  const int32_t k = GetParam().k;
  DrafterCrowd crowd(GetParam(), 4, 128);
  const std::vector<int32_t> text = Tokens(40);
  const size_t one = crowd.Join(text, {}, 60);
  const size_t two = crowd.Join(text, {}, 60);
  RunPrompt(crowd, one);
  RunPrompt(crowd, two);
  std::vector<int32_t> mixed = First(crowd.blocks(one), 8);
  for (const size_t b : {1U, 3U, 4U}) mixed[b] = crowd.blocks(two)[b];
  const size_t third = crowd.Join(Beginning(text, 36, 6), mixed, 80);
  RunPrompt(crowd, third);
  crowd.Step({{.member = two, .next = Token()}}, k);
  crowd.Step({{.member = two, .next = Token()}}, 0);
  crowd.Step({{.member = third, .next = Token()}, {.member = one, .next = Token()}}, k);
  for (const size_t i : {third, one}) {
    ASSERT_NO_FATAL_FAILURE(crowd.ExpectEqualsRecomputation(i));
  }
  EXPECT_GE(crowd.FinalEnd(third, 0), 40);
}

// Anything: who joins with which blocks, who is in a step, in which order, what is accepted, how
// many modules run, who ends, whose blocks get another content.
TEST_P(SharedBlocksTest, AnyCrowdAnyDepths) {
  constexpr int32_t kMembers = 4;
  const int32_t k = GetParam().k;
  int32_t shared = 0;
  int32_t most_behind = 0;
  for (int round = 0; round < 2; ++round) {
    DrafterCrowd crowd(GetParam(), kMembers, 400);
    const std::vector<int32_t> text = Tokens(40);
    std::vector<size_t> running;
    std::vector<size_t> ended;
    int32_t depth = 0;
    for (int step = 0; step < 60; ++step) {
      if (running.size() < kMembers && Below(2) == 0) {
        const std::vector<int32_t> prompt =
            round == 0 ? Beginning(text, 1 + Below(40), Below(12) + 1)
                       : Beginning(text, 40, Below(3) == 0 ? 70 : 1 + Below(6));
        // Each block from any request that has it.
        std::vector<int32_t> found;
        for (const int32_t most = Below(11);;) {
          std::vector<int32_t> choices;
          const auto next = static_cast<int32_t>(found.size());
          for (size_t i = 0; i < crowd.size() && next < most; ++i) {
            if (crowd.Shareable(i, prompt) <= next) continue;
            choices.push_back(crowd.blocks(i)[static_cast<size_t>(next)]);
          }
          if (choices.empty()) break;
          found.push_back(
              choices[static_cast<size_t>(Below(static_cast<int32_t>(choices.size())))]);
        }
        shared += static_cast<int32_t>(found.size());
        running.push_back(crowd.Join(prompt, found, static_cast<int32_t>(prompt.size()) + 70));
      }
      if (Below(3) == 0) depth = Below(2) * (1 + Below(k));
      std::vector<DrafterCrowd::Part> parts;
      for (const size_t i : running) {
        if (Below(6) == 0) continue;
        const int32_t left = crowd.prompt_left(i);
        parts.push_back({.member = i,
                         .count = left > 0 ? 1 + Below(left) : 0,
                         .accepted = left > 0 ? 0 : Below(crowd.num_drafts(i) + 1),
                         .next = Token()});
      }
      std::shuffle(parts.begin(), parts.end(), random_);
      if (step == 59) depth = k;
      if (!parts.empty()) crowd.Step(parts, depth);
      for (const size_t i : running) {
        most_behind = std::max(most_behind, crowd.num_computed(i) - crowd.FinalEnd(i, k - 1));
        if (step % (kSanitized ? 24 : 8) != 3 && step != 59) continue;
        ASSERT_NO_FATAL_FAILURE(crowd.ExpectEqualsRecomputation(i))
            << "round " << round << " step " << step;
      }
      std::erase_if(running, [&](size_t i) {
        if (!crowd.full(i) && Below(30) > 0) return false;
        crowd.Finish(i);
        ended.push_back(i);
        return true;
      });
      for (; ended.size() > 3; ended.erase(ended.begin())) crowd.Drop(ended[0]);
    }
  }
  EXPECT_GT(shared, 20);
  EXPECT_GT(most_behind, 30);
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, SharedBlocksTest,
    testing::Values(DrafterCase{true, 1}, DrafterCase{true, 3},
                    DrafterCase{true, 3, DraftForm::kPadded},
                    DrafterCase{true, 2, DraftForm::kCompacted, KvCacheForm::kHeads},
                    DrafterCase{false, 3}, DrafterCase{false, 3, DraftForm::kPadded}),
    [](const testing::TestParamInfo<DrafterCase>& test) {
      return fmt::format("{}{}{}{}", test.param.chain ? "Chain" : "Repeated", test.param.k,
                         test.param.form == DraftForm::kPadded ? "Padded" : "",
                         test.param.cache_form == KvCacheForm::kHeads ? "Heads" : "");
    });

}  // namespace
}  // namespace outrider
