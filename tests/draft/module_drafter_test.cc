// After every step each drafter's cache equals a recomputation from scratch, bit for bit, whatever
// was accepted before, and so do its drafts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/draft/drafter_simulation.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

using Case = DrafterCase;

class DrafterStateTest : public testing::TestWithParam<Case> {};

TEST_P(DrafterStateTest, EqualsRecomputationAfterEveryStep) {
  const int32_t k = GetParam().k;
  std::mt19937 random(static_cast<uint32_t>(17 * k + (GetParam().chain ? 1 : 0)));
  const auto token = [&] { return static_cast<int32_t>(6 + random() % 1500); };
  for (const int32_t prompt_length : {1, 2, 3, 4, 5, 13}) {
    if (kSanitized && (prompt_length == 3 || prompt_length == 4)) continue;
    for (int round = 0; round < 3; ++round) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < prompt_length; ++i) prompt.push_back(token());
      const KeptRows kept = round == 1 ? KeptRows::kAll : KeptRows::kLast;
      DrafterSimulation simulation(GetParam(), prompt, kept);
      for (int32_t left = prompt_length; left > 0;) {
        const int32_t chunk =
            round == 0 ? left : 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(left));
        simulation.PromptChunk(chunk, token());
        left -= chunk;
        simulation.ExpectEqualsRecomputation();
        if (HasFatalFailure()) return;
      }
      // Round 0 rejects everything right after the prompt, as often as there are modules.
      for (int step = 0; step < k + 3; ++step) {
        const int32_t accepted =
            round == 0 ? 0
                       : static_cast<int32_t>(random() %
                                              static_cast<uint32_t>(simulation.num_drafts() + 1));
        // Round 2 changes the number of drafts as it goes, down to none and back.
        const int32_t wanted =
            round == 2 ? static_cast<int32_t>(random() % static_cast<uint32_t>(k + 1)) : k;
        simulation.Decode(accepted, token(), wanted);
        simulation.ExpectEqualsRecomputation();
        ASSERT_FALSE(HasFatalFailure())
            << "prompt " << prompt_length << " round " << round << " step " << step;
      }
    }
  }
}

// Modules fall behind and catch up, by any number of steps, from the prompt on. In any state blocks
// are kept in a preemption, and another request uses them.
TEST_P(DrafterStateTest, EqualsRecomputationHoweverFarModulesLag) {
  const int32_t k = GetParam().k;
  std::mt19937 random(static_cast<uint32_t>(29 * k + (GetParam().chain ? 1 : 0)));
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  const auto token = [&] { return 6 + below(1500); };
  int32_t most_behind = 0;
  for (int round = 0; round < (kSanitized ? 3 : 6); ++round) {
    std::vector<int32_t> prompt;
    for (int32_t i = below(14); i >= 0; --i) prompt.push_back(token());
    DrafterSimulation simulation(GetParam(), prompt);
    simulation.SetDepth(below(k + 1));
    for (auto left = static_cast<int32_t>(prompt.size()); left > 0;) {
      const int32_t chunk = 1 + below(left);
      simulation.PromptChunk(chunk, token());
      left -= chunk;
      ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation());
      if (round % 2 == 1) simulation.SetDepth(below(k + 1));
    }
    for (int step = 0; step < 16; ++step) {
      int32_t depth = round % 3 == 0 || below(3) == 0 ? below(k + 1) : simulation.num_drafts();
      if (step == 15) depth = k;
      const int32_t accepted = below(simulation.num_drafts() + 1);
      simulation.SetDepth(depth);
      simulation.Decode(accepted, token(), depth);
      ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation())
          << "round " << round << " step " << step;
      most_behind = std::max(most_behind, simulation.num_computed() - simulation.FinalEnd(k - 1));
      const int32_t whole_blocks = (simulation.num_computed() - k) / 4;
      if (step % 5 == 2 && whole_blocks > 0) {
        simulation.SetDepth(below(k + 1));
        simulation.Visit(below(whole_blocks) + 1);
      }
      if (step % 7 == 6 && whole_blocks > 0) {
        simulation.Preempt(below(whole_blocks + 1));
        ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation()) << "preempted";
      }
    }
    EXPECT_GE(simulation.FinalEnd(k - 1), simulation.num_computed() - k);
  }
  EXPECT_GT(most_behind, kSanitized ? 4 : 8);
}

std::string CaseName(const testing::TestParamInfo<Case>& test) {
  return fmt::format("{}{}{}{}{}", test.param.chain ? "Chain" : "Repeated", test.param.k,
                     test.param.form == DraftForm::kPadded ? "Padded" : "",
                     test.param.cache_form == KvCacheForm::kHeads ? "Heads" : "",
                     test.param.fake ? "Fake" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, DrafterStateTest,
    testing::Values(Case{true, 1}, Case{true, 2}, Case{true, 3}, Case{false, 1}, Case{false, 2},
                    Case{false, 3}, Case{true, 1, DraftForm::kPadded},
                    Case{true, 2, DraftForm::kPadded}, Case{true, 3, DraftForm::kPadded},
                    Case{false, 1, DraftForm::kPadded}, Case{false, 3, DraftForm::kPadded},
                    Case{true, 3, DraftForm::kCompacted, KvCacheForm::kHeads},
                    Case{true, 3, DraftForm::kPadded, KvCacheForm::kHeads},
                    Case{false, 3, DraftForm::kCompacted, KvCacheForm::kHeads},
                    Case{.chain = true, .fake = true}, Case{.chain = false, .fake = true},
                    Case{.chain = false, .form = DraftForm::kPadded, .fake = true}),
    CaseName);

/// Prompts and sampled tokens of the named scenarios.
int32_t NextToken() {
  static std::mt19937 random(99);
  return static_cast<int32_t>(6 + random() % 1500);
}

std::vector<int32_t> Prompt(int32_t length) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(NextToken());
  return prompt;
}

/// Runs the prompt in the chunks given, then one decode step per entry of `accepted`; checks after
/// each.
void RunScenario(const DrafterCase& drafter_case, const std::vector<int32_t>& chunks,
                 const std::vector<int32_t>& accepted) {
  DrafterSimulation simulation(drafter_case,
                               Prompt(std::accumulate(chunks.begin(), chunks.end(), 0)));
  for (const int32_t chunk : chunks) {
    simulation.PromptChunk(chunk, NextToken());
    ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation());
  }
  for (const int32_t a : accepted) {
    simulation.Decode(a, NextToken(), drafter_case.k);
    ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation());
  }
}

class DrafterScenarioTest : public testing::TestWithParam<Case> {};

TEST_P(DrafterScenarioTest, EveryAcceptedCountAfterEveryOther) {
  std::vector<int32_t> accepted;
  for (int32_t a = 0; a <= 3; ++a) {
    for (int32_t b = 0; b <= 3; ++b) accepted.insert(accepted.end(), {a, b});
  }
  RunScenario(GetParam(), {7}, accepted);
}

TEST_P(DrafterScenarioTest, AllRejectedAgainAndAgainRightAfterThePrompt) {
  RunScenario(GetParam(), {9}, {0, 0, 0, 0});
}

TEST_P(DrafterScenarioTest, PromptsOfOneAndTwoTokensThenAllRejected) {
  RunScenario(GetParam(), {1}, {0, 0, 0, 0});
  RunScenario(GetParam(), {2}, {0, 0, 0, 0});
}

TEST_P(DrafterScenarioTest, LastChunkOfOneTokenThenAllRejected) {
  RunScenario(GetParam(), {8, 1}, {0, 0, 0, 0});
  RunScenario(GetParam(), {1, 1}, {0, 0, 0, 0});
}

TEST_P(DrafterScenarioTest, ChunkBoundaryOneToKTokensBeforeThePromptsEnd) {
  for (int32_t before = 1; before <= 3; ++before) {
    RunScenario(GetParam(), {8, before}, {0, 2, 0});
    RunScenario(GetParam(), {3, 3, before}, {1, 0, 3});
  }
}

TEST_P(DrafterScenarioTest, CatchesUpOnALongPromptApartFromTheStep) {
  DrafterSimulation simulation(GetParam(), Prompt(100));
  simulation.SetDepth(0);
  for (const int32_t chunk : {30, 70}) simulation.PromptChunk(chunk, NextToken());
  simulation.Decode(0, NextToken(), 0);
  EXPECT_EQ(simulation.FinalEnd(0), 0);
  simulation.SetDepth(GetParam().k);
  simulation.Decode(0, NextToken(), GetParam().k);
  ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation());
  for (const int32_t a : {0, 3, 1}) {
    simulation.Decode(a, NextToken(), GetParam().k);
    ASSERT_NO_FATAL_FAILURE(simulation.ExpectEqualsRecomputation());
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, DrafterScenarioTest,
                         testing::Values(Case{true, 3}, Case{true, 3, DraftForm::kPadded},
                                         Case{false, 3}, Case{false, 3, DraftForm::kPadded}),
                         CaseName);

}  // namespace
}  // namespace outrider
