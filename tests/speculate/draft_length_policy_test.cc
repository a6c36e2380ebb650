// The policy on made-up machines and texts: what it chooses, and how fast that is beside every
// fixed number of drafts. Longer than most files: all of them share one simulation.
#include "outrider/speculate/draft_length_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "tests/sanitized.h"

namespace outrider {
namespace {

constexpr int32_t kMost = 3;

/// A machine, a text and a load.
struct World {
  std::function<double(double)> verify = [](double) { return 1.0; };   // seconds of rows
  std::function<double(double)> module = [](double) { return 0.02; };  // of one pass over rows
  std::function<double(double)> inner =
      {};  // where those before a chain's last take something else
  std::function<double(double)> prompt = [](double r) { return 0.05 * r; };
  double accepted = 0.9;  // at every place
  int32_t batch = 1;
  int32_t prompt_rows = 0;       // of a prompt,
  double tokens_per_prompt = 0;  // one after so many tokens
  double noise = 0.03;           // of every time, one standard deviation
  // What steps take beside these times, not counted.
  std::function<double(int64_t)> slowness = [](int64_t) { return 1.0; };
  int64_t put_off = 0;  // module rows that run before the first draft after none
};

/// Steps of a chain of modules in a world, of a policy or of a fixed number of drafts.
class Simulation {
 public:
  explicit Simulation(World world, bool chained = true, uint32_t seed = 7)
      : world_(std::move(world)), chained_(chained), policy_(kMost, chained), random_(seed) {}

  World& world() { return world_; }
  double seconds() const { return seconds_; }
  double tokens() const { return tokens_; }
  int64_t steps(int32_t k) const { return steps_.at(static_cast<size_t>(k)); }
  int64_t changes() const { return changes_; }
  int32_t last() const { return k_; }

  /// In the next step, beside those that follow requests that end.
  void AddPrompts(int32_t rows) { first_prompt_rows_ += rows; }

  void Run(int steps, int32_t fixed = -1) {
    for (int i = 0; i < steps; ++i) Step(fixed);
  }

  /// Forgets what was counted, not what was learned.
  void StartCounting() {
    seconds_ = tokens_ = 0;
    steps_ = {};
    changes_ = 0;
  }

 private:
  double Noise() { return std::exp(std::normal_distribution<>(0, world_.noise)(random_)); }

  void Step(int32_t fixed) {
    std::vector<int32_t> tried(kMost);
    std::vector<int32_t> accepted(kMost);
    const int32_t verified = k_;
    int32_t tokens = 0;
    for (int32_t b = 0; b < world_.batch; ++b) {
      ++tokens;
      for (int32_t d = 0; d < verified; ++d) {
        ++tried[static_cast<size_t>(d)];
        if (std::bernoulli_distribution(world_.accepted)(random_)) {
          ++accepted[static_cast<size_t>(d)];
          ++tokens;
        } else {
          break;
        }
      }
    }
    int32_t prompt_rows = std::exchange(first_prompt_rows_, 0);
    int32_t ended_rows = 0;
    double ended_tokens = 0;
    if (world_.tokens_per_prompt > 0) {
      since_prompt_ += tokens;
      while (since_prompt_ >= world_.tokens_per_prompt) {
        since_prompt_ -= world_.tokens_per_prompt;
        ended_rows += world_.prompt_rows;
        ended_tokens += world_.tokens_per_prompt;
      }
      prompt_rows += ended_rows;  // for each that ends another one comes
    }
    const int64_t left = k_ == 0 ? world_.put_off : 0;
    const std::vector<int64_t> put_off = {0, left, left, left};
    const int32_t k = fixed >= 0 ? fixed : policy_.Choose(world_.batch, put_off);
    changes_ += k != k_;
    k_ = k;
    ++steps_.at(static_cast<size_t>(k));

    DraftStep step{.depth = k,
                   .prompt_rows = prompt_rows,
                   .verify_rows = world_.batch * (1 + verified),
                   .tokens = tokens,
                   .ended_prompt_rows = ended_rows,
                   .ended_tokens = std::lround(ended_tokens),
                   .tried = tried,
                   .accepted = accepted};
    step.seconds = world_.verify(step.verify_rows) * Noise();
    if (prompt_rows > 0) step.seconds += world_.prompt(prompt_rows) * Noise();
    if (k > 0) {
      const int32_t first = tokens + prompt_rows;
      if (chained_) {
        step.module_rows = int64_t{k} * std::max(world_.batch * k + prompt_rows, first);
        const double rows = static_cast<double>(step.module_rows) / k;
        step.draft_seconds = world_.module(rows) +
                             (k - 1) * (world_.inner ? world_.inner(rows) : world_.module(rows));
      } else {
        step.module_rows = first + int64_t{world_.batch} * (k - 1);
        step.draft_seconds = world_.module(first) + (k - 1) * world_.module(world_.batch);
      }
      step.draft_seconds *= Noise();
    }
    seconds_ += step.seconds + step.draft_seconds;
    tokens_ += tokens;
    const double slowness = world_.slowness(step_++);
    step.seconds *= slowness;
    step.draft_seconds *= slowness;
    policy_.Observe(step);
  }

  World world_;
  bool chained_;
  DraftLengthPolicy policy_;
  std::mt19937 random_;
  int32_t k_ = 0;
  int32_t first_prompt_rows_ = 0;
  double since_prompt_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
  std::array<int64_t, kMost + 1> steps_ = {};
  int64_t changes_ = 0;
  int64_t step_ = 0;
};

/// Tokens per second over those of the best fixed number.
double BesideTheBest(const World& world, bool chained = true, int steps = 4000) {
  double best = 0;
  for (int32_t k = 0; k <= kMost; ++k) {
    Simulation fixed(world, chained);
    fixed.Run(steps, k);
    best = std::max(best, fixed.tokens() / fixed.seconds());
  }
  Simulation adaptive(world, chained);
  adaptive.Run(steps);
  return adaptive.tokens() / adaptive.seconds() / best;
}

double InProportion(double rows) { return rows; }

TEST(DraftLengthPolicyTest, DraftsNothingWhenRowsCostInProportion) {
  const World world{.verify = InProportion, .module = [](double r) { return 0.2 * r; }, .batch = 8};
  Simulation simulation(world);
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(0), 970);
  EXPECT_EQ(simulation.last(), 0);
  EXPECT_GT(BesideTheBest(world), 0.97);
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

TEST(DraftLengthPolicyTest, CountsWhatModulesTakeForPrompts) {
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

TEST(DraftLengthPolicyTest, ManyPromptsAtOnceAreForManyTokens) {
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
  simulation.world().put_off = 64 * 200;
  simulation.StartCounting();
  simulation.Run(300);
  EXPECT_EQ(simulation.steps(0), 0);
}

TEST(DraftLengthPolicyTest, KnowsThatInnerModulesTakeMoreForPrompts) {
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

TEST(DraftLengthPolicyTest, FallsWhenDraftsAreRefusedAndRecoversWhenTheyAreAccepted) {
  Simulation simulation({.verify = [](double r) { return 1 + 0.1 * r; }, .accepted = 0.02});
  simulation.Run(1000);
  EXPECT_EQ(simulation.last(), 0);
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
  simulation.Run(300);
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

TEST(DraftLengthPolicyTest, DoesNotCatchUpOnMoreThanDraftsGain) {
  // As above; after the crowd 256 steps gain some 500 seconds, and that many rows take 2,500.
  for (const int64_t put_off : {1'000, 100'000}) {
    Simulation simulation({.verify = [](double r) { return std::max(1.0, r / 8); },
                           .module = [](double r) { return 0.2 * std::max(1.0, r / 8); }});
    simulation.world().put_off = put_off;
    simulation.Run(300);
    simulation.world().batch = 128;
    simulation.Run(100);
    simulation.world().batch = 1;
    simulation.StartCounting();
    simulation.Run(100);
    if (put_off == 1'000) {
      EXPECT_GT(simulation.steps(kMost), 80);
    } else {
      EXPECT_EQ(simulation.steps(0), 100);
    }
  }
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
    simulation.world().put_off = 350;
    simulation.StartCounting();
    simulation.Run(5000);
    EXPECT_GT(simulation.tokens() / simulation.seconds(), 0.97 * fixed.tokens() / fixed.seconds())
        << "seed " << seed << ", steps without drafts " << simulation.steps(0);
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

TEST(DraftLengthPolicyTest, DoesNotProbeWhatHasTooMuchToCatchUpOn) {
  DraftLengthPolicy policy(kMost, true);
  const std::vector<int32_t> none(kMost);
  const auto probes = [&](int64_t put_off) {
    const std::vector<int64_t> rows = {0, put_off, put_off, put_off};
    int64_t count = 0;
    for (int i = 0; i < 3000; ++i) {
      const int32_t k = policy.Choose(4, rows);
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
