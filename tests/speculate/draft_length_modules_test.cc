// The policy and what modules take: for drafts, for prompts, for what they catch up on.
#include <gtest/gtest.h>

#include <algorithm>

#include "outrider/speculate/draft_length_policy.h"
#include "tests/speculate/draft_length_simulation.h"

namespace outrider {
namespace {

TEST(DraftLengthModulesTest, CountsWhatModulesTakeForPrompts) {
  // While answers are generated drafts pay a little; with their part of long prompts they do not.
  World world{.verify = [](double r) { return 2 + 0.2 * r; },
              .module = [](double r) { return 0.15 * r; },
              .accepted = 0.95,
              .batch = 4,
              .prompt_rows = 40,
              .tokens_per_prompt = 20};
  Simulation simulation(world);
  simulation.Run(2000);
  EXPECT_GT(simulation.steps(0), 1900);
  EXPECT_GT(BesideTheBest(world), 0.97);
  world.prompt_rows = 1;
  Simulation short_prompts(world);
  short_prompts.Run(2000);
  EXPECT_LT(short_prompts.steps(0), 200);
}

TEST(DraftLengthModulesTest, ManyPromptsAtOnceAreForManyTokens) {
  // One draft or two gain a sixth, their part of prompts counted. After one request come 64.
  World world{.verify = [](double r) { return 4 + 0.05 * r; },
              .module = [](double r) { return 0.1 + 0.005 * r; },
              .prompt = [](double r) { return 0.05 * r; },
              .accepted = 0.95,
              .prompt_rows = 160,
              .tokens_per_prompt = 160,
              .noise = 0.01};
  Simulation simulation(world, false);
  simulation.Run(100);
  simulation.world().batch = 64;
  simulation.AddPrompts(64 * 160);
  simulation.world().most_put_off = 64 * 200;
  simulation.StartCounting();
  simulation.Run(300);
  EXPECT_EQ(simulation.steps(0), 0);
}

TEST(DraftLengthModulesTest, KnowsThatInnerModulesTakeMoreForPrompts) {
  // Beyond k = 1 every draft more costs what an inner module takes for the prompts.
  const World world{.verify = [](double r) { return 1 + 0.05 * r; },
                    .module = [](double r) { return 0.02 + 0.002 * r; },
                    .inner = [](double r) { return 0.02 + 0.1 * r; },
                    .accepted = 0.95,
                    .prompt_rows = 40,
                    .tokens_per_prompt = 20};
  Simulation simulation(world);
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(1), 900);
  EXPECT_GT(BesideTheBest(world), 0.97);
}

TEST(DraftLengthModulesTest, KnowsThatRowsThatDraftTakeMoreThanPrompts) {
  // A request with long prompts, then 128 without any, for which drafting takes as long as
  // verification.
  const World world{.verify = [](double r) { return 1 + 0.01 * r; },
                    .module = [](double r) { return 0.02 * r; },
                    .entry = [](double r) { return 0.0005 * r; },
                    .prompt_rows = 400,
                    .tokens_per_prompt = 50};
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Simulation simulation(world, seed % 4 != 0, seed);
    simulation.Run(500);
    EXPECT_LT(simulation.steps(0), 50);
    simulation.world().batch = 128;
    simulation.world().tokens_per_prompt = 0;
    simulation.Run(50);
    simulation.StartCounting();
    simulation.Run(200);
    EXPECT_GT(simulation.steps(0), 190);
  }
}

TEST(DraftLengthModulesTest, DoesNotCatchUpOnMoreThanDraftsGain) {
  // Rows are free up to 8, so a crowd drafts nothing. After it 256 steps gain some 500 seconds, and
  // to catch up on 100,000 rows takes 2,500, or next to nothing where entries are cheap.
  const std::function<double(double)> cheap = [](double r) { return 1e-4 * r; };
  struct Case {
    int64_t put_off;
    std::function<double(double)> entry;
    bool catches_up;
  };
  for (const Case& c : {Case{1'000, {}, true}, {100'000, {}, false}, {100'000, cheap, true}}) {
    Simulation simulation({.verify = [](double r) { return std::max(1.0, r / 8); },
                           .module = [](double r) { return 0.2 * std::max(1.0, r / 8); },
                           .entry = c.entry});
    simulation.world().most_put_off = c.put_off;
    simulation.AddPrompts(10'000);  // tells what entries take
    simulation.Run(300);
    simulation.world().batch = 128;
    simulation.Run(1000);
    simulation.world().batch = 1;
    simulation.StartCounting();
    simulation.Run(100);
    if (c.catches_up) {
      EXPECT_LT(simulation.steps(0), 20);
    } else {
      EXPECT_EQ(simulation.steps(0), 100);
    }
  }
}

/// 128 requests for which no draft pays, and catching up takes as long as four steps. The machine
/// is slow until shortly before the first look.
World Crowd() {
  return {.verify = [](double r) { return 4 + 0.25 * r; },
          .module = [](double r) { return 0.1 + 0.06 * r; },
          .entry = [](double r) { return 0.02 * r; },
          .prompt = [](double r) { return 0.2 * r; },
          .accepted = 0.95,
          .batch = 128,
          .prompt_rows = 35,
          .tokens_per_prompt = 48,
          .noise = 0.05,
          .slowness = [](int64_t step) { return step >= 20 && step < 60 ? 1.4 : 1.0; },
          .most_put_off = 128 * 60};
}

TEST(DraftLengthModulesTest, LooksAtMoreDraftsWithoutCatchingUp) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Simulation simulation(Crowd(), true, seed);
    simulation.Run(30);
    simulation.StartCounting();
    int32_t steps_with_dummies = 0;
    for (int i = 0; i < 200; ++i) {
      simulation.Run(1);
      steps_with_dummies += simulation.dummies() > 0;
    }
    EXPECT_EQ(simulation.steps(0), 200) << seed;
    EXPECT_GE(steps_with_dummies, 2) << seed;
  }
}

TEST(DraftLengthModulesTest, TakesDraftsUpWhenDummiesSayThatTheyPay) {
  // Since they were measured, rows beyond the first 128 have become nearly free.
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Simulation simulation(Crowd(), true, seed);
    simulation.Run(30);
    EXPECT_EQ(simulation.last(), 0) << seed;
    simulation.world().verify = [](double r) { return 36 + 0.02 * std::max(0.0, r - 128); };
    simulation.Run(200);
    simulation.StartCounting();
    simulation.Run(100);
    EXPECT_LT(simulation.steps(0), 10) << seed;
  }
}

TEST(DraftLengthModulesTest, NeverUsesDummiesWhereTheyWouldChangeWhatIsGenerated) {
  DraftLengthPolicy policy(kMost, true, false);
  const std::vector<int64_t> rows = {0, 500, 500, 500};
  const std::vector<int32_t> none(kMost);
  for (int i = 0; i < 3000; ++i) {
    const DraftLength length = policy.Choose(4, rows);
    EXPECT_EQ(length.dummies, 0);
    policy.Observe({.seconds = 4.0 * (1 + length.drafts),
                    .draft_seconds = 0.5 * length.drafts,
                    .depth = length.drafts,
                    .module_rows = length.drafts,
                    .verify_rows = 4 * (1 + length.drafts),
                    .tokens = 4,
                    .tried = none,
                    .accepted = none});
  }
}

TEST(DraftLengthModulesTest, DoesNotTakeCatchingUpForCheapWhereFewRowsAreVerifiedForFree) {
  // No draft is right. Verification is known of a few rows only, which are free; of 7,000 a module
  // takes 175 seconds.
  Simulation simulation({.verify = [](double r) { return std::max(1.0, r / 8); },
                         .module = [](double r) { return 0.2 * std::max(1.0, r / 8); },
                         .accepted = 0.02,
                         .most_put_off = 10'000});
  simulation.Run(500);
  EXPECT_EQ(simulation.last(), 0);
  simulation.AddPrompts(7'000);
  simulation.Run(1);
  simulation.StartCounting();
  simulation.Run(3000);
  EXPECT_EQ(simulation.steps(0), 3000);
}

TEST(DraftLengthModulesTest, AProbeThatCaughtUpRunsUntilItLostAsMuch) {
  constexpr int32_t kRequests = 16;  // more than have trials
  for (const int64_t put_off : {0, 8'000}) {
    DraftLengthPolicy policy(kMost, true, false);
    Dear dear;
    for (int i = 0; i < 1000; ++i) dear.Step(policy, kRequests, 0);
    int32_t longest = 0;
    int32_t length = 0;
    for (int i = 0; i < 8000; ++i) {
      length = dear.Step(policy, kRequests, length == 0 ? put_off : 0) > 0 ? length + 1 : 0;
      longest = std::max(longest, length);
    }
    // Catching up on 8,000 rows takes 80 s, a step of k = 1 loses some 16.
    EXPECT_EQ(longest, put_off == 0 ? 1 : 5) << put_off;
  }
}

TEST(DraftLengthModulesTest, DoesNotProbeWhatHasTooMuchToCatchUpOn) {
  DraftLengthPolicy policy(kMost, true, false);
  const std::vector<int32_t> none(kMost);
  const auto probes = [&](int64_t put_off) {
    const std::vector<int64_t> rows = {0, put_off, put_off, put_off};
    int64_t count = 0;
    for (int i = 0; i < 3000; ++i) {
      const int32_t k = policy.Choose(4, rows).drafts;
      count += k > 0;
      policy.Observe({.seconds = 4.0 * (1 + k),
                      .draft_seconds = 0.5 * k,
                      .depth = k,
                      .module_rows = k,
                      .verify_rows = 4 * (1 + k),
                      .tokens = 4,
                      .tried = none,
                      .accepted = none});
    }
    return count;
  };
  EXPECT_GT(probes(0), 5);
  EXPECT_EQ(probes(1'000'000), 0);
  EXPECT_GT(probes(0), 5);
}

}  // namespace
}  // namespace outrider
