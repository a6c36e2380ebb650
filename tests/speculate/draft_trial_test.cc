// One request on machines whose caches hold the weights of the last steps only: what trials are
// for, and what they measure.
#include "outrider/speculate/draft_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/sanitized.h"
#include "tests/speculate/draft_length_simulation.h"

namespace outrider {
namespace {

struct Costs {
  std::vector<double> verify;  // ms of one row to four
  double module = 0;           // ms of a pass
};

/// Chat with short answers, as measured with a small model on a processor with a large cache.
World OneRequest(const Costs& costs) {
  return {.verify = [v = costs.verify](double r) { return v.at(static_cast<size_t>(r) - 1); },
          .module = [m = costs.module](double) { return m; },
          .entry = [m = costs.module](double r) { return 0.25 * m * r; },
          .inner = [m = costs.module](double r) { return m * (0.8 + 0.4 * r); },
          .prompt = [](double r) { return 0.23 * r; },
          .accepted = 0.95,
          .prompt_rows = 36,
          .tokens_per_prompt = 50,
          .noise = 0.08,
          .most_put_off = 90,
          .settling = {1.5, 1.4, 1.25, 1.15, 1.1, 1.05}};
}

const std::vector<Costs> kMachines = {
    {{0.36, 0.61, 0.77, 0.93}, 0.13},   // none is best, then one
    {{0.31, 0.43, 0.65, 0.82}, 0.12},   // none or one
    {{0.42, 0.58, 0.66, 0.90}, 0.10},   // one, then two
    {{0.35, 0.65, 0.70, 0.75}, 0.12},   // none; one and two lose 0.14, three 0.22
    {{0.40, 0.40, 0.40, 0.41}, 0.05}};  // two or three

/// The mean over seeds of tokens per second over those of the best fixed number, for 8,000 steps.
double MeanBesideTheBest(const World& world,
                         const std::function<std::function<double(int64_t)>(uint32_t)>& slowness) {
  double best = 0;
  for (int32_t k = 0; k <= kMost; ++k) {
    Simulation fixed(world);
    fixed.Run(8000, k);
    best = std::max(best, fixed.tokens() / fixed.seconds());
  }
  const uint32_t num_seeds = kSanitized ? 1 : 4;
  double mean = 0;
  for (uint32_t seed = 1; seed <= num_seeds; ++seed) {
    World disturbed = world;
    disturbed.slowness = slowness(seed);
    Simulation adaptive(disturbed, true, seed);
    adaptive.Run(8000);
    mean += adaptive.tokens() / adaptive.seconds() / best / num_seeds;
  }
  return mean;
}

TEST(DraftTrialTest, FindsTheBestThoughAChangeIsSlowAtFirst) {
  const auto steady = [](uint32_t) { return [](int64_t) { return 1.0; }; };
  for (size_t i = 0; i < kMachines.size(); ++i) {
    EXPECT_GT(MeanBesideTheBest(OneRequest(kMachines[i]), steady), 0.975) << "machine " << i;
  }
}

TEST(DraftTrialTest, FindsTheBestThoughOtherProgramsTakeTheProcessorAway) {
  // One step of 25 takes 3 to 23 times as long.
  const auto disturbed = [](uint32_t seed) {
    return [random = std::mt19937(seed)](int64_t) mutable {
      std::uniform_real_distribution<> share;
      return share(random) < 0.04 ? 3 + 20 * share(random) : 1.0;
    };
  };
  for (size_t i = 0; i < kMachines.size(); ++i) {
    EXPECT_GT(MeanBesideTheBest(OneRequest(kMachines[i]), disturbed), 0.97) << "machine " << i;
  }
}

TEST(DraftTrialTest, FindsTheBestThoughTheSpeedWanders) {
  // By 0.15, of which a third is left after a hundred steps.
  const auto wandering = [](uint32_t seed) {
    return [random = std::mt19937(seed), deviation = 0.0](int64_t) mutable {
      constexpr double kKept = 0.99;
      std::normal_distribution<> news(0, 0.15 * std::sqrt(1 - kKept * kKept));
      deviation = kKept * deviation + news(random);
      return std::exp(deviation);
    };
  };
  for (size_t i = 0; i < kMachines.size(); ++i) {
    EXPECT_GT(MeanBesideTheBest(OneRequest(kMachines[i]), wandering), 0.97) << "machine " << i;
  }
}

TEST(DraftTrialTest, TriesEveryNumberAgainAndAgain) {
  // Two or three are best; none and one are never beside both of them.
  Simulation simulation(OneRequest(kMachines.back()));
  simulation.Run(2000);
  for (int i = 0; i < 2; ++i) {
    simulation.StartCounting();
    simulation.Run(20'000);
    for (int32_t k = 0; k <= kMost; ++k) EXPECT_GT(simulation.steps(k), 10) << k;
    EXPECT_LT(simulation.steps(0), 400);
  }
}

DraftStep StepOf(double seconds, int32_t prompt_rows, std::span<const int32_t> tried) {
  return {.seconds = seconds,
          .draft_seconds = seconds / 2,
          .prompt_rows = prompt_rows,
          .tried = tried,
          .accepted = tried};
}

TEST(DraftTrialTest, TakesTheSpeedBetweenBeforeAndAfter) {
  DraftTrial trial;
  EXPECT_FALSE(trial.IsPending());
  trial.Start(1);
  trial.Add(StepOf(1, 0, {}));
  int after = 1;
  while (!trial.AddAfter()) {
    EXPECT_TRUE(trial.IsPending());
    ++after;
  }
  EXPECT_EQ(after, 8);
  const DraftTrial::Result result = trial.Take(4);
  EXPECT_DOUBLE_EQ(result.slowness, 2);
  EXPECT_EQ(result.steps.size(), 1U);
  EXPECT_FALSE(trial.IsPending());
  trial.Start(6);
  trial.Rescale(2);
  EXPECT_DOUBLE_EQ(trial.Take(3).slowness, 3);
}

TEST(DraftTrialTest, OneDisturbedStepTakesALittleLongerThanMost) {
  const std::vector<int32_t> tried = {1};
  DraftTrial trial;
  trial.Start(1);
  for (const double seconds : {1.0, 30.0, 1.1, 0.9, 1.0}) trial.Add(StepOf(seconds, 0, tried));
  trial.Add(StepOf(9, 40, tried));
  const std::vector<DraftStep> steps = trial.Take(1).steps;
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_DOUBLE_EQ(steps[1].seconds, 1.3);
  EXPECT_DOUBLE_EQ(steps[1].draft_seconds, 0.65);
  EXPECT_DOUBLE_EQ(steps[2].seconds, 1.1);
  EXPECT_DOUBLE_EQ(steps[5].seconds, 9);
  EXPECT_TRUE(steps[0].tried.empty());
}

}  // namespace
}  // namespace outrider
