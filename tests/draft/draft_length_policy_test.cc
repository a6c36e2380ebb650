// The policy on made-up machines and texts: what it chooses, and how fast that is beside every
// fixed number of drafts.
#include "outrider/draft/draft_length_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <vector>

namespace outrider {
namespace {

constexpr int32_t kMost = 3;
constexpr std::array kBatches = {1, 2, 4, 8, 16, 32, 64};

/// Seconds of rows that are verified, of rows that one module runs.
struct Machine {
  std::function<double(double)> verify;
  std::function<double(double)> module;
  double looking = 0;  // with lookups: what a step takes longer by that waits for tokens

  double Seconds(double requests, int32_t k) const { return Seconds(requests, k, requests); }

  /// Of these, `drafted` have drafts.
  double Seconds(double requests, int32_t k, double drafted) const {
    const double waits = k > 0 ? looking * verify(requests) : 0;
    return waits + verify(requests + drafted * k) + k * module(drafted);
  }

  StepTimes Measure() const {
    StepTimes times;
    for (const int32_t n : kBatches) {
      times.batches.push_back({n, {}});
      for (int32_t k = 0; k <= kMost; ++k) times.batches.back().seconds.push_back(Seconds(n, k));
      if (looking > 0) times.batches.back().looking_seconds = (1 + looking) * Seconds(n, 0);
    }
    return times;
  }
};

double InProportion(double rows) { return rows; }
double Free(double /*rows*/) { return 1; }
double Nothing(double /*rows*/) { return 0; }

/// Steps of requests whose every draft is right with one probability; where drafts are looked up,
/// some are found with another.
class Simulation {
 public:
  Simulation(const Machine& machine, int32_t requests, double accepted, double found = 1)
      : requests_(requests),
        accepted_(accepted),
        found_(found),
        machine_(machine),
        policy_(kMost, machine.Measure()) {}

  void SetRequests(int32_t requests) { requests_ = requests; }
  void SetAccepted(double accepted) { accepted_ = accepted; }
  void SetFound(double found) { found_ = found; }

  void Run(int32_t steps) {
    for (int32_t s = 0; s < steps; ++s) Step(policy_.Choose(requests_));
  }
  void RunFixed(int32_t steps, int32_t k) {
    for (int32_t s = 0; s < steps; ++s) Step(k);
  }

  DraftLengthPolicy& policy() { return policy_; }
  double TokensPerSecond() const { return tokens_ / seconds_; }
  /// Steps with so many drafts.
  int32_t steps(int32_t k) const { return steps_[static_cast<size_t>(k)]; }
  void StartCounting() { steps_ = {}; }

 private:
  void Step(int32_t k) {
    std::array<int32_t, kMost> tried = {};
    std::array<int32_t, kMost> right = {};
    int32_t drafted = 0;
    for (int32_t r = 0; r < requests_; ++r) {
      ++tokens_;
      if (k == 0 || std::uniform_real_distribution(0.0, 1.0)(random_) >= found_) continue;
      ++drafted;
      for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
        ++tried[i];
        if (std::uniform_real_distribution(0.0, 1.0)(random_) >= accepted_) break;
        ++right[i];
        ++tokens_;
      }
    }
    seconds_ += machine_.Seconds(requests_, k, drafted);
    ++steps_[static_cast<size_t>(k)];
    policy_.ObserveStep(tried, right);
    if (k > 0) policy_.ObserveLookups(requests_, drafted);
  }

  int32_t requests_;
  double accepted_;
  double found_;
  Machine machine_;
  DraftLengthPolicy policy_;
  std::mt19937 random_{7};
  double tokens_ = 0;
  double seconds_ = 0;
  std::array<int32_t, kMost + 1> steps_ = {};
};

TEST(StepTimesTest, AreOnLinesBetweenBatchesAndGrowWithTheRequestsBeyond) {
  const StepTimes times{.batches = {{1, {1, 2}}, {4, {4, 5}}}, .prompt_row_seconds = {}};
  EXPECT_DOUBLE_EQ(times.Seconds(1, 0), 1);
  EXPECT_DOUBLE_EQ(times.Seconds(2, 1), 3);
  EXPECT_DOUBLE_EQ(times.Seconds(4, 1), 5);
  EXPECT_DOUBLE_EQ(times.Seconds(8, 0), 8);
  EXPECT_DOUBLE_EQ(times.Seconds(8, 1), 10);
}

TEST(DraftLengthPolicyTest, WithoutTimesAlwaysTheMost) {
  DraftLengthPolicy policy(kMost, {});
  policy.ObserveStep(std::array{100, 0, 0}, std::array{0, 0, 0});
  for (const int32_t requests : {0, 1, 500}) EXPECT_EQ(policy.Choose(requests), kMost);
}

TEST(DraftLengthPolicyTest, IsCloseToTheBestOnEverySortOfMachine) {
  const std::vector<Machine> machines = {
      {Free, Nothing},
      {InProportion, Nothing},
      {[](double r) { return 1 + 0.02 * r; }, [](double) { return 0.1; }},
      {[](double r) { return std::max(1.0, 0.2 * r); }, [](double) { return 0.05; }},
      {[](double r) { return 0.3 + 0.5 * r; }, [](double r) { return 0.05 * r; }},
      {[](double r) { return std::sqrt(r); }, [](double r) { return 0.2 * std::sqrt(r); }}};
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const int32_t requests : {1, 6, 128}) {
      for (const double accepted : {0.05, 0.5, 0.9}) {
        double best = 0;
        for (int32_t k = 0; k <= kMost; ++k) {
          Simulation fixed(machines[m], requests, accepted);
          fixed.RunFixed(1000, k);
          best = std::max(best, fixed.TokensPerSecond());
        }
        Simulation adaptive(machines[m], requests, accepted);
        adaptive.Run(1000);
        EXPECT_GT(adaptive.TokensPerSecond(), 0.95 * best)
            << "machine " << m << ", " << requests << " requests, accepted " << accepted;
      }
    }
  }
}

// With one request drafts are free, with 64 each costs as much as a token.
TEST(DraftLengthPolicyTest, FallsAtOnceWhenACrowdComesAndRisesWhenItIsGone) {
  const Machine machine{[](double r) { return std::max(8.0, r); }, Nothing};
  Simulation simulation(machine, 1, 0.9);
  simulation.Run(20);
  EXPECT_EQ(simulation.steps(kMost), 20);
  EXPECT_EQ(simulation.policy().Choose(0), kMost) << "nobody verifies: as before";
  simulation.SetRequests(64);
  simulation.StartCounting();
  simulation.Run(20);
  EXPECT_EQ(simulation.steps(0), 20);
  EXPECT_EQ(simulation.policy().Choose(0), 0);
  simulation.SetRequests(1);
  simulation.StartCounting();
  simulation.Run(100);
  EXPECT_EQ(simulation.steps(0), DraftLengthPolicy::kLastingSteps - 1);
  EXPECT_EQ(simulation.steps(kMost), 100 - simulation.steps(0));
}

TEST(DraftLengthPolicyTest, ACrowdThatComesAndGoesDoesNotRaiseTheNumber) {
  const Machine machine{[](double r) { return std::max(8.0, r); }, Nothing};
  Simulation simulation(machine, 64, 0.9);
  for (int32_t i = 0; i < 50; ++i) {
    simulation.SetRequests(64);
    simulation.Run(1);
    simulation.SetRequests(1);
    simulation.Run(DraftLengthPolicy::kLastingSteps - 1);
  }
  EXPECT_EQ(simulation.steps(0), 50 * DraftLengthPolicy::kLastingSteps);
}

// What is known of acceptance is about one step of so many requests.
TEST(DraftLengthPolicyTest, AFewHardTokensOfManyRequestsDoNotLowerTheNumber) {
  Simulation simulation({[](double r) { return 1 + 0.002 * r; }, Nothing}, 128, 0.9);
  simulation.Run(10);
  simulation.StartCounting();
  for (int32_t i = 0; i < 20; ++i) {
    simulation.SetAccepted(0);
    simulation.Run(5);
    simulation.SetAccepted(0.9);
    simulation.Run(5);
  }
  EXPECT_EQ(simulation.steps(kMost), 200);
  simulation.SetAccepted(0);
  simulation.Run(DraftLengthPolicy::kLastingSteps + 1);
  simulation.StartCounting();
  simulation.Run(100);
  EXPECT_EQ(simulation.steps(0), 100);
}

TEST(DraftLengthPolicyTest, AGainThatIsTooSmallChangesNothing) {
  // Seconds per token are equal at 1.9 tokens with one draft; acceptance scatters about that.
  const auto count_changes = [](double seconds) {
    const StepTimes times{.batches = {{1, {1, seconds}}}, .prompt_row_seconds = {}};
    DraftLengthPolicy policy(1, times);
    std::mt19937 random(1);
    int32_t changes = 0;
    int32_t last = policy.Choose(1);
    for (int32_t i = 0; i < 3000; ++i) {
      const bool right = std::uniform_real_distribution(0.0, 1.0)(random) < 0.9;
      policy.ObserveStep(std::array{1}, std::array{right ? 1 : 0});
      const int32_t k = policy.Choose(1);
      changes += k != last ? 1 : 0;
      last = k;
    }
    return changes;
  };
  EXPECT_LE(count_changes(1.9), 20);
  EXPECT_LE(count_changes(1.5), 1);
}

TEST(DraftLengthPolicyTest, FallsWhenDraftsAreRefusedAndRecoversWhenTheyAreAccepted) {
  Simulation simulation({[](double r) { return 1 + 0.1 * r; }, Nothing}, 1, 0.02);
  simulation.Run(50);
  simulation.StartCounting();
  simulation.Run(3000);
  // They are tried again now and then, for kLastingSteps steps.
  EXPECT_GT(simulation.steps(0), 2700);
  simulation.SetAccepted(0.95);
  simulation.Run(10000);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(kMost), 950);
  simulation.SetAccepted(0.02);
  simulation.Run(800);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_GT(simulation.steps(0), 900);
}

TEST(DraftLengthPolicyTest, CountsWhatModulesTakeForPrompts) {
  // Two drafts are the best for answers, none for prompts.
  StepTimes times{.batches = {{1, {1, 1.2, 1.3, 5}}}, .prompt_row_seconds = {0.1, 0.2, 0.3, 0.4}};
  const auto choice = [&](int64_t prompt_rows) {
    DraftLengthPolicy policy(kMost, times);
    policy.ObserveStep(std::array{100, 100, 100}, std::array{90, 90, 90});
    policy.ObserveEnd(prompt_rows, 50);
    return policy.Choose(1);
  };
  EXPECT_EQ(choice(0), 2);
  EXPECT_EQ(choice(1000), 0);
}

/// As a GPU's: rows are cheap, and a step that waits for tokens takes 3 % longer.
Machine LookingMachine() {
  return {[](double r) { return 1 + 0.002 * r; }, Nothing, 0.03};
}

TEST(DraftLengthPolicyTest, LookupsThatFindNothingEndSoonAndCostLittle) {
  for (const int32_t requests : {1, 6, 128}) {
    Simulation simulation(LookingMachine(), requests, 0.9, /*found=*/0);
    simulation.Run(requests == 1 ? 80 : 40);
    EXPECT_GE(simulation.steps(0), 8) << requests << " requests";
    Simulation none(LookingMachine(), requests, 0.9);
    none.RunFixed(6400, 0);
    Simulation later = simulation;
    later.StartCounting();
    later.Run(6400);
    EXPECT_EQ(later.steps(0), 6400 - 6400 / DraftLengthPolicy::kLookAgainSteps);
    EXPECT_GT(later.TokensPerSecond(), 0.998 * none.TokensPerSecond());
  }
}

TEST(DraftLengthPolicyTest, TextThatRepeatsGetsItsDraftsBack) {
  for (const int32_t requests : {1, 6, 128}) {
    Simulation simulation(LookingMachine(), requests, 0.9, /*found=*/0);
    simulation.Run(500);
    simulation.SetFound(0.9);
    simulation.Run(3 * DraftLengthPolicy::kLookAgainSteps);
    simulation.StartCounting();
    simulation.Run(200);
    EXPECT_EQ(simulation.steps(0), 0) << requests << " requests";
    simulation.SetFound(0);
    simulation.Run(200);
    simulation.StartCounting();
    simulation.Run(320);
    EXPECT_EQ(simulation.steps(0), 310) << requests << " requests";
  }
}

// Where a row costs as much time as a token, one look in kLookAgainSteps would be a loss.
TEST(DraftLengthPolicyTest, NobodyLooksForDraftsThatWouldNotPay) {
  Simulation simulation({InProportion, Nothing, 0.03}, 128, 0.5, /*found=*/0.5);
  simulation.Run(50);
  simulation.StartCounting();
  simulation.Run(1000);
  EXPECT_EQ(simulation.steps(0), 1000);
}

TEST(DraftLengthPolicyTest, IsCloseToTheBestHoweverMuchIsFound) {
  const std::vector<Machine> machines = {
      LookingMachine(),
      {InProportion, Nothing, 0.001},
      {[](double r) { return 1 + 0.1 * r; }, Nothing, 0.02},
      {[](double r) { return std::max(1.0, 0.2 * r); }, Nothing, 0.1}};
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const int32_t requests : {1, 6, 64}) {
      for (const double found : {0.0, 0.01, 0.03, 0.1, 0.5, 1.0}) {
        for (const double accepted : {0.1, 0.5, 0.9}) {
          double best = 0;
          for (int32_t k = 0; k <= kMost; ++k) {
            Simulation fixed(machines[m], requests, accepted, found);
            fixed.RunFixed(2000, k);
            best = std::max(best, fixed.TokensPerSecond());
          }
          Simulation adaptive(machines[m], requests, accepted, found);
          adaptive.Run(2000);
          EXPECT_GT(adaptive.TokensPerSecond(), 0.95 * best)
              << "machine " << m << ", " << requests << " requests, found " << found
              << ", accepted " << accepted;
        }
      }
    }
  }
}

// Drafters with modules draft for all who may have drafts.
TEST(DraftLengthPolicyTest, WithoutLookupsAllHaveDrafts) {
  Simulation with({[](double r) { return 1 + 0.1 * r; }, Nothing}, 6, 0.9);
  for (int32_t i = 0; i < 100; ++i) with.policy().ObserveLookups(6, 0);
  with.Run(100);
  EXPECT_EQ(with.steps(0), 0);
}

TEST(DraftLengthPolicyTest, OldPromptsAreForgotten) {
  DraftLengthPolicy policy(1, {.batches = {{1, {1, 1.2}}}, .prompt_row_seconds = {0.1, 0.2}});
  policy.ObserveEnd(10000, 50);
  EXPECT_EQ(policy.Choose(1), 0);
  policy.ObserveEnd(100, 5000);
  for (int32_t i = 0; i < DraftLengthPolicy::kLastingSteps; ++i) policy.Choose(1);
  EXPECT_EQ(policy.Choose(1), 1);
}

}  // namespace
}  // namespace outrider
