// One request on machines whose caches hold the weights of the last steps only: what trials are
// for, and what they measure.
#include "outrider/speculate/draft_trials.h"

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

TEST(DraftTrialsTest, FindsTheBestThoughAChangeIsSlowAtFirst) {
  const auto steady = [](uint32_t) { return [](int64_t) { return 1.0; }; };
  for (size_t i = 0; i < kMachines.size(); ++i) {
    EXPECT_GT(MeanBesideTheBest(OneRequest(kMachines[i]), steady), 0.975) << "machine " << i;
  }
}

TEST(DraftTrialsTest, FindsTheBestThoughOtherProgramsTakeTheProcessorAway) {
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

TEST(DraftTrialsTest, FindsTheBestThoughTheSpeedWanders) {
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

TEST(DraftTrialsTest, TriesEveryNumberAgainAndAgain) {
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

constexpr double kOne = 1;  // request

/// Steps of the block that runs, so many that it ends.
void Fill(DraftTrials& trials, double seconds) {
  while (!trials.IsBlockOver(/*begins=*/false, kOne)) {
    trials.Observe({.seconds = 0.75 * seconds, .draft_seconds = 0.25 * seconds, .verify_rows = 1});
  }
  trials.EndBlock(kOne);
}

/// A block of `best`, a trial and a block of `best` again, in the midst of requests.
void Try(DraftTrials& trials, int32_t tried, int32_t best, double before, double during,
         double after) {
  trials.StartBlock(best, false, false, kOne);
  Fill(trials, before);
  EXPECT_TRUE(trials.CanTry(tried, best, kOne));
  trials.StartBlock(tried, true, false, kOne);
  EXPECT_TRUE(trials.IsPending());
  Fill(trials, during);
  EXPECT_TRUE(trials.IsPending());
  trials.StartBlock(best, false, false, kOne);
  Fill(trials, after);
  EXPECT_FALSE(trials.IsPending());
}

TEST(DraftTrialsTest, TakesTheSpeedBetweenBeforeAndAfter) {
  DraftTrials trials(3);
  Try(trials, 2, 1, 1, 6, 4);
  EXPECT_EQ(trials.NumTrials(2, kOne), 1);
  EXPECT_EQ(trials.NumTrials(1, kOne), 1);
  EXPECT_EQ(trials.NumTrials(0, kOne), 0);
  EXPECT_NEAR(trials.StepRatio(2, 1, kOne), 3, 1e-9);
  EXPECT_NEAR(trials.StepRatio(1, 2, kOne), 1.0 / 3, 1e-9);
  EXPECT_EQ(trials.NumTrials(2, 8), 0);  // nothing is known of other loads
}

TEST(DraftTrialsTest, AveragesTrialsAndTellsWhatTheLastOneSaid) {
  DraftTrials trials(3);
  Try(trials, 2, 1, 1, 4, 1);
  Try(trials, 2, 1, 1, 1, 1);
  EXPECT_NEAR(trials.StepRatio(2, 1, kOne), 2, 1e-9);
  EXPECT_NEAR(trials.Surprise(2, kOne), 0.5, 1e-9);
  // Of many trials the newer ones count more.
  for (int i = 0; i < 40; ++i) Try(trials, 2, 1, 1, 3, 1);
  EXPECT_NEAR(trials.StepRatio(2, 1, kOne), 3, 0.05);
  EXPECT_EQ(trials.NumTrials(2, kOne), 8);
}

TEST(DraftTrialsTest, ATrialBesideAnotherNumberTiesWhatIsKnownTogether) {
  DraftTrials trials(3);
  Try(trials, 0, 1, 1, 0.5, 1);
  Try(trials, 3, 0, 1, 6, 1);
  EXPECT_NEAR(trials.StepRatio(3, 1, kOne), 3, 1e-9);
  // Of neither anything would be known beside the others.
  trials = DraftTrials(3);
  Try(trials, 0, 1, 1, 0.5, 1);
  trials.StartBlock(2, false, false, kOne);
  Fill(trials, 1);
  EXPECT_FALSE(trials.CanTry(3, 2, kOne));
  Try(trials, 1, 2, 1, 0.25, 1);
  EXPECT_NEAR(trials.StepRatio(2, 0, kOne), 8, 1e-9);
  EXPECT_TRUE(trials.CanTry(3, 2, kOne));
}

TEST(DraftTrialsTest, DoesNotCountStepsThatSettleNorPrompts) {
  DraftTrials trials(3);
  trials.StartBlock(1, false, true, kOne);
  Fill(trials, 1);
  trials.StartBlock(2, true, false, kOne);
  for (int i = 0; i < DraftTrials::SettlingSteps(kOne); ++i) {
    trials.Observe({.seconds = 50, .verify_rows = 1});
  }
  trials.Observe({.seconds = 70, .prompt_rows = 40, .verify_rows = 1});
  trials.Observe({.seconds = 90, .prompt_rows = 40});
  Fill(trials, 2);
  trials.StartBlock(1, false, false, kOne);
  Fill(trials, 1);
  EXPECT_NEAR(trials.StepRatio(2, 1, kOne), 2, 1e-9);
}

TEST(DraftTrialsTest, OneDisturbedStepCountsTwiceAsMuchAsMost) {
  DraftTrials trials(3);
  trials.StartBlock(1, false, false, kOne);
  Fill(trials, 1);
  trials.StartBlock(2, true, false, kOne);
  trials.DoNotCount(DraftTrials::SettlingSteps(kOne) + 2);
  for (int i = 0; i < DraftTrials::SettlingSteps(kOne) + 2; ++i) trials.Observe({.verify_rows = 1});
  trials.Observe({.seconds = 1000, .verify_rows = 1});
  Fill(trials, 1);
  trials.StartBlock(1, false, false, kOne);
  Fill(trials, 1);
  const double length = DraftTrials::BlockLength(kOne);
  EXPECT_NEAR(trials.StepRatio(2, 1, kOne), (0.75 * (length + 1) + 0.25 * (length - 1)) / length,
              1e-9);
}

TEST(DraftTrialsTest, ABlockEndsWithARequestIfItIsLongEnough) {
  DraftTrials trials(3);
  EXPECT_TRUE(trials.IsBlockOver(false, kOne));
  trials.StartBlock(1, false, true, kOne);
  const DraftStep step = {.seconds = 1, .verify_rows = 1};
  trials.Observe(step);  // verifies what the block before drafted
  for (int i = 0; i < DraftTrials::kMostBlock; ++i) {
    EXPECT_EQ(trials.IsBlockOver(true, kOne), i >= DraftTrials::kLeastBlock) << i;
    EXPECT_FALSE(trials.IsBlockOver(false, kOne)) << i;
    trials.Observe(step);
  }
  EXPECT_TRUE(trials.IsBlockOver(false, kOne));
  trials.Abandon();
  EXPECT_TRUE(trials.IsBlockOver(false, kOne));
  EXPECT_FALSE(trials.CanTry(2, 1, kOne));
}

}  // namespace
}  // namespace outrider
