// How many tokens to draft next: the number that gives the most tokens per second.
//
// Two things decide it. StepTimes says how long a step takes with each number of drafts; it is
// measured when the engine starts. How many tokens a step gives follows from the share of drafts
// that were accepted at each position, which is counted while the engine serves. The expected
// seconds per token with k drafts are
//
//   step seconds(k) / (requests * tokens per step(k)) + prompt rows per token * prompt seconds(k)
//
// Prompts count because modules run over them too. Another number takes over when it promises at
// least kLeastGain for kLastingSteps steps in a row: a few hard tokens say little, and modules that
// did not run first have to catch up. A smaller number takes over at once where more requests have
// made it the better one.
//
// Pure: no clock, no random numbers. Output never depends on the number of drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

/// How long steps take, by the number of requests and of drafts.
struct StepTimes {
  struct Batch {
    int32_t num_requests = 0;     // all verify: each has 1 + drafts rows
    std::vector<double> seconds;  // [k + 1]: of a step with 0 .. k drafts, drafting included
  };

  std::vector<Batch> batches;              // by rising num_requests; empty: nothing was measured
  std::vector<double> prompt_row_seconds;  // [k + 1] for a row of a prompt; empty: not measured

  /// Seconds of a step with `drafts` drafts per request, interpolated linearly between the batches.
  /// Beyond the largest batch they grow in proportion to the requests. There must be a batch.
  double Seconds(double num_requests, int32_t drafts) const;
};

class DraftLengthPolicy {
 public:
  static constexpr double kLeastGain = 0.03;
  static constexpr int32_t kLastingSteps = 16;

  /// Chooses 0 .. max_drafts; always max_drafts if `times` is empty.
  DraftLengthPolicy(int32_t max_drafts, StepTimes times);

  /// Chooses for the next step, in which `num_requests` requests verify.
  int32_t Choose(int32_t num_requests);

  /// Counts a step. tried [k]: requests whose draft i was reached, as those before it were right.
  /// accepted [k]: requests whose draft i was right and gave a token.
  void ObserveStep(std::span<const int32_t> tried, std::span<const int32_t> accepted);

  /// Counts a request that has ended: the rows that were computed for its prompt, and the tokens
  /// that it got.
  void ObserveEnd(int64_t prompt_rows, int64_t tokens);

 private:
  double TokensPerStep(int32_t k) const;
  double SecondsPerToken(int32_t k, int32_t num_requests) const;
  int32_t Best(int32_t num_requests) const;
  /// The best if it gains enough, else the chosen one.
  int32_t Better(int32_t num_requests) const;

  int32_t max_drafts_;
  StepTimes times_;
  int32_t chosen_ = -1;        // -1: none yet
  int32_t last_requests_ = 0;  // of the last step that verified
  int32_t lasting_ = 0;        // steps in a row in which another number promised more
  std::vector<double> tried_;
  std::vector<double> accepted_;
  double prompt_rows_ = 0;  // of requests that ended lately
  double tokens_ = 0;
};

}  // namespace outrider
