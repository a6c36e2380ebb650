// The policy on made-up machines and texts: what it chooses, and how fast that is beside every
// fixed number of drafts.
#include "outrider/speculate/draft_length_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/sanitized.h"
#include "tests/speculate/draft_length_simulation.h"

namespace outrider {
namespace {

double InProportion(double rows) { return rows; }

TEST(DraftLengthPolicyTest, DraftsNothingWhenRowsCostInProportion) {
  World world{.verify = InProportion, .module = [](double r) { return 0.2 * r; }};
  for (const int32_t batch : {8, 16}) {
    world.batch = batch;
    Simulation simulation(world);
    simulation.Run(1000);
    // Eight have trials, of which the first is some 50 steps after the start.
    EXPECT_GT(simulation.steps(0), batch == 8 ? 915 : 970);
    EXPECT_EQ(simulation.last(), 0);
    EXPECT_GT(BesideTheBest(world), 0.97);
  }
}

TEST(DraftLengthPolicyTest, DraftsTheMostWhenRowsAreFree) {
  for (const bool chained : {true, false}) {
    Simulation simulation({}, chained);
    simulation.Run(1000);
    EXPECT_GT(simulation.steps(kMost), 850);
    EXPECT_GT(BesideTheBest({}, chained), 0.97);
  }
}

TEST(DraftLengthPolicyTest, FindsTheBestBetween) {
  // One row more is nearly free, the next two are not.
  const World world{.verify = [](double r) { return r <= 2 ? 1.0 : 1 + 0.6 * (r - 2); },
                    .accepted = 0.8};
  Simulation simulation(world);
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(1), 850);
  EXPECT_GT(BesideTheBest(world), 0.97);
}

TEST(DraftLengthPolicyTest, IsCloseToTheBestOnEverySortOfMachine) {
  const std::vector<std::function<double(double)>> machines = {
      [](double r) { return 1 + 0.02 * r; },            // bound by memory, then by arithmetic
      [](double r) { return std::max(1.0, 0.2 * r); },  // a corner
      [](double r) { return 0.3 + 0.5 * r; },
      [](double r) { return std::sqrt(r); },  // experts: more rows touch more of them
      InProportion};
  for (size_t i = 0; i < machines.size(); ++i) {
    for (const int32_t batch : {1, 8, 128}) {
      if (kSanitized && batch != 8) continue;
      for (const double accepted : {0.3, 0.9}) {
        const World world{.verify = machines[i],
                          .module = [&](double r) { return 0.2 * machines[i](r); },
                          .accepted = accepted,
                          .batch = batch};
        EXPECT_GT(BesideTheBest(world), 0.97)
            << "machine " << i << " batch " << batch << " accepted " << accepted;
      }
    }
  }
}

TEST(DraftLengthPolicyTest, LearnsWhenEveryStepHasAPrompt) {
  Simulation simulation({.verify = InProportion,
                         .module = [](double) { return 0.0; },
                         .accepted = 0.8,
                         .batch = 128,
                         .prompt_rows = 50,
                         .tokens_per_prompt = 50});
  simulation.Run(200);
  EXPECT_GT(simulation.steps(0), 180);
}

TEST(DraftLengthPolicyTest, StaysWhereItIsBesideEquals) {
  // k = 1 and k = 2 are equally good, times scatter by a tenth.
  const World world{.verify = [](double r) { return r <= 2 ? 1.0 : 1.33 + 2 * (r - 3); },
                    .module = [](double) { return 0.04; },
                    .accepted = 0.8,
                    .noise = 0.1};
  Simulation simulation(world);
  simulation.Run(500);
  simulation.StartCounting();
  simulation.Run(2000);
  EXPECT_LT(simulation.changes(), 20);
  EXPECT_GT(BesideTheBest(world), 0.97);
}

TEST(DraftLengthPolicyTest, MoreDraftsMustPromiseAGainAndFewerNone) {
  // A step with one draft takes 1.6 times as long as one without. It gives 1.9 tokens, then 1.64.
  const auto verify = [](double r) {
    return 1 + 0.57 * std::max(0.0, r - 32) / 32 + std::max(0.0, r - 64) / 32;
  };
  Simulation simulation(
      {.verify = verify, .module = [](double) { return 0.03; }, .batch = 32, .noise = 0.005});
  simulation.Run(1000);
  ASSERT_EQ(simulation.last(), 1);
  simulation.world().accepted = 0.64;
  simulation.Run(1000);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(0), 700);
}

TEST(DraftLengthPolicyTest, FallsWhenDraftsAreRefusedAndRecoversWhenTheyAreAccepted) {
  Simulation simulation({.verify = [](double r) { return 1 + 0.1 * r; }, .accepted = 0.02});
  simulation.Run(1000);
  simulation.StartCounting();
  simulation.Run(200);
  EXPECT_GT(simulation.steps(0), 150);
  simulation.world().accepted = 0.95;
  simulation.Run(4000);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(kMost), 850);
  simulation.world().accepted = 0.02;
  simulation.Run(400);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(0), 850);
}

TEST(DraftLengthPolicyTest, FollowsAMachineThatChanges) {
  Simulation simulation({});
  simulation.Run(500);
  simulation.world().verify = InProportion;
  simulation.world().module = [](double) { return 0.3; };
  simulation.Run(200);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(0), 900);
  simulation.world().verify = [](double) { return 1.0; };
  simulation.world().module = [](double) { return 0.02; };
  simulation.Run(20000);  // what was dear is probed seldom
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(kMost), 850);
}

TEST(DraftLengthPolicyTest, KnowsACrowdFromWhatItKnowsOfFew) {
  // Rows are free up to 8; then a crowd comes.
  Simulation simulation({.verify = [](double r) { return std::max(1.0, r / 8); },
                         .module = [](double r) { return 0.2 * std::max(1.0, r / 8); }});
  simulation.Run(400);  // the number that is best has a trial first
  EXPECT_GT(simulation.steps(kMost), 200);
  simulation.world().batch = 128;
  simulation.Run(20);
  simulation.StartCounting();
  simulation.Run(100);
  EXPECT_GT(simulation.steps(0), 95);
  simulation.world().batch = 1;
  simulation.Run(50);
  simulation.StartCounting();
  simulation.Run(100);
  EXPECT_GT(simulation.steps(kMost), 80);
}

TEST(DraftLengthPolicyTest, DoesNotFollowEveryRequestThatEnds) {
  // Tiles of seven rows: seven requests are best without drafts, eight with one each.
  Simulation simulation({.verify = [](double r) { return std::ceil(r / 7); },
                         .module = [](double r) { return 0.02 * r; },
                         .accepted = 0.95});
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      simulation.world().batch = i % 4 == 3 ? 7 : 8;
      simulation.Run(1);
    }
  };
  run(500);
  simulation.StartCounting();
  run(1000);
  EXPECT_LT(simulation.changes(), 150);  // probes and back
}

TEST(DraftLengthPolicyTest, FindsTheBestThoughCatchingUpIsDear) {
  // Eight requests at once after one. A draft gains a tenth, the first steps with them are slow,
  // and catching up takes as long as two steps.
  const auto verify = [](double r) {
    return 0.5 + 0.12 * std::min(r, 16.0) + 0.25 * std::max(0.0, r - 16);
  };
  const auto module = [](double r) { return 0.05 + 0.01 * r; };
  World world{.verify = verify, .module = module, .accepted = 0.95, .batch = 8, .noise = 0.1};
  Simulation fixed(world);
  fixed.Run(5000, 1);
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    world.batch = 1;
    world.slowness = [](int64_t step) { return step >= 60 && step < 70 ? 2.5 : 1.0; };
    Simulation simulation(world, true, seed);
    simulation.Run(60);
    simulation.world().batch = 8;
    simulation.world().most_put_off = 350;
    simulation.StartCounting();
    simulation.Run(5000);
    EXPECT_GT(simulation.tokens() / simulation.seconds(), 0.97 * fixed.tokens() / fixed.seconds())
        << "seed " << seed << ", steps without drafts " << simulation.steps(0);
  }
}

TEST(DraftLengthPolicyTest, FindsTheBestForACrowdThatComesWithPrompts) {
  // 32 requests at once after one, and from then on nearly every step has prompts too. One draft
  // gains a tenth. The first steps are slow, alone and in the crowd.
  const auto verify = [](double r) {
    return 0.6 + 0.13 * std::min(r, 32.0) + 0.066 * std::max(0.0, r - 32);
  };
  World world{.verify = verify,
              .module = [](double r) { return 0.1 + 0.016 * r; },
              .entry = [](double r) { return 0.004 * r; },
              .inner = [](double r) { return 0.12 + 0.02 * r; },
              .prompt = [](double r) { return 0.075 * r; },
              .accepted = 0.95,
              .batch = 32,
              .prompt_rows = 35,
              .tokens_per_prompt = 48,
              .noise = 0.1};
  Simulation fixed(world);
  fixed.Run(2000, 1);
  const double best = fixed.tokens() / fixed.seconds();
  world.batch = 1;
  world.slowness = [](int64_t step) { return step < 3 || (step >= 30 && step < 40) ? 1.75 : 1.0; };
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Simulation simulation(world, true, seed);
    simulation.Run(30);
    simulation.world().batch = 32;
    simulation.world().most_put_off = 32 * 40;
    simulation.AddPrompts(32 * 35);
    simulation.StartCounting();
    simulation.Run(2000);
    EXPECT_GT(simulation.tokens() / simulation.seconds(), 0.97 * best)
        << "seed " << seed << ", steps without drafts " << simulation.steps(0);
  }
}

TEST(DraftLengthPolicyTest, DoesNotTakeThreeThatEndForAnotherLoad) {
  // Tiles of five rows: five requests are best without drafts, eight with one each.
  Simulation simulation({.verify = [](double r) { return std::ceil(r / 5.4); },
                         .module = [](double r) { return 0.02 * r; },
                         .accepted = 0.95});
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      simulation.world().batch = i % 4 == 3 ? 5 : 8;
      simulation.Run(1);
    }
  };
  run(500);
  simulation.StartCounting();
  run(1000);
  EXPECT_LT(simulation.changes(), 150);  // probes and back
}

TEST(DraftLengthPolicyTest, KeepsItsNumberUntilANewBatchSizeHasBeenMeasured) {
  DraftLengthPolicy policy(kMost, true, false);
  Dear dear;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(dear.Step(policy, 1, 0), 1) << "before " << i;
  for (const int32_t batch : {16, 128}) {
    DraftLengthPolicy crowd = policy;
    Dear dearer = dear;
    int32_t kept = 0;
    while (kept < 20 && dearer.Step(crowd, batch, 0) > 0) ++kept;
    EXPECT_EQ(kept, batch == 16 ? 7 : 1);
  }
}

TEST(DraftLengthPolicyTest, ComparesAtOneSpeedOfTheMachine) {
  // One draft is best, two lose 0.045, none 0.07. The machine's speed scatters by 0.3, and what is
  // left of a deviation after a hundred steps is about a third.
  World world{.verify = [](double r) { return 0.5 + 0.1 * r; },
              .module = [](double r) { return 0.05 + 0.01 * r; },
              .batch = 8,
              .noise = 0.05};
  Simulation fixed(world);
  fixed.Run(4000, 1);
  const uint32_t num_seeds = kSanitized ? 1 : 64;
  double mean = 0;
  for (uint32_t seed = 1; seed <= num_seeds; ++seed) {
    world.slowness = [random = std::mt19937(seed), deviation = 0.0](int64_t) mutable {
      constexpr double kKept = 0.99;
      std::normal_distribution<> news(0, 0.3 * std::sqrt(1 - kKept * kKept));
      deviation = kKept * deviation + news(random);
      return std::exp(deviation);
    };
    Simulation simulation(world, true, seed);
    simulation.Run(4000);
    const double speed = simulation.tokens() / simulation.seconds();
    mean += speed / (fixed.tokens() / fixed.seconds()) / num_seeds;
  }
  EXPECT_GT(mean, kSanitized ? 0.97 : 0.985);
}

TEST(DraftLengthPolicyTest, ComesBackToWhatItLeftInASlowMoment) {
  // Two drafts are best; one and three lose 0.03. The machine's speed swings between 0.6 and 1.65
  // within 157 steps.
  World world{.verify = [](double r) { return 0.5 + 0.3 * r; },
              .module = [](double r) { return 0.02 + 0.05 * r; },
              .accepted = 0.95,
              .noise = 0.05};
  Simulation fixed(world);
  fixed.Run(4000, 2);
  world.slowness = [](int64_t step) { return std::exp(0.5 * std::sin(0.02 * step)); };
  const uint32_t num_seeds = kSanitized ? 1 : 16;
  double mean = 0;
  for (uint32_t seed = 1; seed <= num_seeds; ++seed) {
    Simulation simulation(world, true, seed);
    simulation.Run(4000);
    const double speed = simulation.tokens() / simulation.seconds();
    mean += speed / (fixed.tokens() / fixed.seconds()) / num_seeds;
  }
  EXPECT_GT(mean, kSanitized ? 0.965 : 0.984);
}

TEST(DraftLengthPolicyTest, TheLastStepsBeforeAChangeAreOfTheSameSlowMoment) {
  // The machine stumbles while a crowd begins: two of three steps take twice as long. No drafts are
  // the best; who learns from the last of those steps as from a probe keeps one draft for long.
  World world{.verify =
                  [](double r) {
                    return r <= 32 ? 4.6 * (0.3 + 0.7 * r / 32) : 4.6 * (1 + 0.65 * (r / 32 - 1));
                  },
              .module = [](double r) { return 0.4 + 0.024 * r; },
              .entry = [](double r) { return 0.017 * r; },
              .inner = [](double r) { return 0.3 + 0.026 * r; },
              .prompt = [](double r) { return 0.075 * r; },
              .accepted = 0.97,
              .batch = 32,
              .prompt_rows = 36,
              .tokens_per_prompt = 46,
              .noise = 0.06};
  world.slowness = [](int64_t s) { return s < 16 || s >= 44 || s % 3 == 0 ? 1.0 : 2.0; };
  world.most_put_off = int64_t{60} * 32;
  int64_t without = 0;
  constexpr uint32_t kSeeds = 12;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    Simulation simulation(world, true, seed);
    simulation.Run(100);
    simulation.StartCounting();
    simulation.Run(600);
    without += simulation.steps(0);
  }
  EXPECT_GT(without, kSeeds * 550);
}

TEST(DraftLengthPolicyTest, ScatterDoesNotMoveWhatIsNotMeasured) {
  // Three drafts are best. What scatters was once taken, a little with each step, for a slower
  // machine on which the number that runs had become cheaper than all others: after so many steps
  // that cost 0.3.
  const World world{.verify = [](double r) { return 1 + 0.05 * r; },
                    .module = [](double r) { return 0.05 + 0.01 * r; },
                    .noise = 0.3};
  Simulation fixed(world);
  fixed.Run(10000, kMost);
  const uint32_t num_seeds = kSanitized ? 1 : 4;
  double mean = 0;
  for (uint32_t seed = 1; seed <= num_seeds; ++seed) {
    Simulation simulation(world, true, seed);
    simulation.Run(60000);
    simulation.StartCounting();
    simulation.Run(10000);
    const double speed = simulation.tokens() / simulation.seconds();
    mean += speed / (fixed.tokens() / fixed.seconds()) / num_seeds;
  }
  EXPECT_GT(mean, 0.985);
}

TEST(DraftLengthPolicyTest, AMachineThatSlowsDownDoesSoForAllNumbers) {
  // One draft is best, none and two lose 0.05 and more.
  World world{.verify = [](double r) { return 0.5 + 0.1 * r; },
              .module = [](double r) { return 0.05 + 0.01 * r; },
              .batch = 8};
  world.slowness = [](int64_t step) { return step < 1000 ? 1.0 : step < 2000 ? 2.5 : 0.7; };
  Simulation simulation(world);
  simulation.Run(1000);
  for (int i = 0; i < 2; ++i) {
    simulation.StartCounting();
    simulation.Run(1000);
    EXPECT_GT(simulation.steps(1), 900) << i;
  }
}

TEST(DraftLengthPolicyTest, ASlowStepNowAndThenDoesNotMatter) {
  World world{.verify = [](double r) { return 1 + 0.05 * r; }};
  int calls = 0;
  world.verify = [&calls](double r) { return (++calls % 50 == 0 ? 20 : 1) * (1 + 0.05 * r); };
  Simulation simulation(world);
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(kMost), 850);
}

}  // namespace
}  // namespace outrider
