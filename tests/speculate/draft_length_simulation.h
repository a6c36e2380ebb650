// Made-up machines and texts for the policy that chooses the number of drafts.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "outrider/speculate/draft_length_policy.h"

namespace outrider {

inline constexpr int32_t kMost = 3;

/// A machine, a text and a load.
struct World {
  std::function<double(double)> verify = [](double) { return 1.0; };  // seconds of rows
  // Of one pass over rows; if there is `entry`, of those that draft, and that of the others.
  std::function<double(double)> module = [](double) { return 0.02; };
  std::function<double(double)> entry = {};
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
  int64_t most_put_off = 0;  // rows, by each module: those of the requests that run
  // The first verifications after a change of the number of drafts, and after the prompt of a
  // request that runs alone, take so many times as long: a cache holds other weights.
  std::vector<double> settling = {};
};

/// Steps of a chain of modules in a world, of a policy or of a fixed number of drafts.
class Simulation {
 public:
  explicit Simulation(World world, bool chained = true, uint32_t seed = 7)
      : world_(std::move(world)), chained_(chained), policy_(kMost, chained, true), random_(seed) {}

  World& world() { return world_; }
  double seconds() const { return seconds_; }
  double tokens() const { return tokens_; }
  int64_t steps(int32_t k) const { return steps_.at(static_cast<size_t>(k)); }
  int64_t changes() const { return changes_; }
  int32_t last() const { return k_; }
  int32_t dummies() const { return dummies_; }  // of the last step
  const DraftLengthPolicy& policy() const { return policy_; }

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

  double LastPass(double rows) const {
    if (!world_.entry) return world_.module(rows);
    return world_.module(world_.batch) + world_.entry(rows - world_.batch);
  }

  std::vector<int64_t> RowsPutOff() const {
    std::vector<int64_t> rows = {0};
    for (int32_t k = 1; k <= kMost; ++k) {
      rows.push_back(chained_ || k == 1 ? rows.back() + put_off_.at(static_cast<size_t>(k - 1))
                                        : rows.back());
    }
    return rows;
  }

  void PutOff(int32_t k, int32_t rows) {
    for (int32_t module = 0; module < kMost; ++module) {
      int64_t& put_off = put_off_.at(static_cast<size_t>(module));
      const bool runs = chained_ ? module < k : k > 0;
      put_off = runs ? 0 : std::min(put_off + rows, world_.most_put_off);
    }
  }

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
    const bool is_alone = world_.batch == 1;
    bool ends = false;
    if (world_.tokens_per_prompt > 0) {
      since_prompt_ += tokens;
      while (since_prompt_ >= world_.tokens_per_prompt) {
        since_prompt_ -= world_.tokens_per_prompt;
        ended_rows += world_.prompt_rows;
        ended_tokens += world_.tokens_per_prompt;
      }
      ends = is_alone && ended_rows > 0;
      if (!ends) prompt_rows += ended_rows;  // for each that ends another one comes
    }
    const std::vector<int64_t> put_off = RowsPutOff();
    const int32_t rows_verified = world_.batch * (1 + verified + dummies_);
    const DraftLength length =
        fixed >= 0 ? DraftLength{fixed} : policy_.Choose(ends ? 0 : world_.batch, put_off);
    const int32_t k = length.drafts;
    dummies_ = length.dummies;
    const int64_t left = put_off.at(static_cast<size_t>(k));
    PutOff(k, tokens + prompt_rows);
    const double settling =
        since_change_ < world_.settling.size() ? world_.settling[since_change_] : 1;
    since_change_ = k == k_ ? since_change_ + 1 : 0;
    changes_ += k != k_;
    k_ = k;
    ++steps_.at(static_cast<size_t>(k));

    DraftStep step{.depth = k,
                   .prompt_rows = prompt_rows,
                   .verify_rows = rows_verified,
                   .tokens = tokens,
                   .ended_prompt_rows = ended_rows,
                   .ended_tokens = std::lround(ended_tokens),
                   .tried = tried,
                   .accepted = accepted};
    step.seconds = world_.verify(step.verify_rows) * settling * Noise();
    if (prompt_rows > 0) step.seconds += world_.prompt(prompt_rows) * Noise();
    if (k > 0 && !ends) Draft(tokens + prompt_rows, left, step);
    Count(step);
    if (ends) RunPrompt(ended_rows, fixed);
  }

  /// Of the only request, in a step of its own.
  void RunPrompt(int32_t rows, int32_t fixed) {
    put_off_ = {};
    const std::vector<int64_t> put_off = RowsPutOff();
    const int32_t k = fixed >= 0 ? fixed : policy_.Choose(1, put_off).drafts;
    PutOff(k, rows);
    changes_ += k != k_;
    k_ = k;
    since_change_ = dummies_ = 0;
    ++steps_.at(static_cast<size_t>(k));
    DraftStep step{.seconds = world_.prompt(rows) * Noise(), .depth = k, .prompt_rows = rows};
    if (k > 0) Draft(rows, 0, step);
    ++tokens_;
    Count(step);
  }

  /// What modules do in the step, `left` having been put off.
  void Draft(int32_t first, int64_t left, DraftStep& step) {
    const int32_t k = step.depth;
    step.drafting = world_.batch;
    if (chained_) {
      step.module_rows = int64_t{k} * std::max(world_.batch * k + step.prompt_rows, first) + left;
      const double rows = static_cast<double>(step.module_rows) / k;
      step.draft_seconds =
          LastPass(rows) + (k - 1) * (world_.inner ? world_.inner(rows) : world_.module(rows));
    } else {
      step.module_rows = first + left + int64_t{world_.batch} * (k - 1);
      step.draft_seconds =
          LastPass(static_cast<double>(first + left)) + (k - 1) * world_.module(world_.batch);
    }
    step.draft_seconds *= Noise();
  }

  void Count(DraftStep& step) {
    seconds_ += step.seconds + step.draft_seconds;
    tokens_ += step.tokens;
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
  int32_t dummies_ = 0;
  int32_t first_prompt_rows_ = 0;
  double since_prompt_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
  std::array<int64_t, kMost + 1> steps_ = {};
  std::array<int64_t, kMost> put_off_ = {};  // by each module
  int64_t changes_ = 0;
  size_t since_change_ = 0;
  int64_t step_ = 0;
};

/// Tokens per second over those of the best fixed number.
inline double BesideTheBest(const World& world, bool chained = true, int steps = 4000) {
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

/// Steps that cost a second per row, modules a hundredth; no draft is right.
class Dear {
 public:
  int32_t Step(DraftLengthPolicy& policy, int32_t batch, int64_t put_off) {
    const std::vector<int64_t> rows = {0, put_off, put_off, put_off};
    const int32_t k = policy.Choose(batch, rows).drafts;
    const std::vector<int32_t> tried = {verified_ > 0 ? batch : 0, 0, 0};
    policy.Observe({.seconds = 1.0 * batch * (1 + verified_),
                    .draft_seconds = 0.01 * static_cast<double>(k > 0 ? put_off + batch : 0),
                    .depth = k,
                    .module_rows = k > 0 ? put_off + batch : 0,
                    .drafting = k > 0 ? batch : 0,
                    .verify_rows = batch * (1 + verified_),
                    .tokens = batch,
                    .tried = tried,
                    .accepted = none_});
    verified_ = k;
    return k;
  }

 private:
  int32_t verified_ = 0;
  std::vector<int32_t> none_ = std::vector<int32_t>(kMost);
};

}  // namespace outrider
