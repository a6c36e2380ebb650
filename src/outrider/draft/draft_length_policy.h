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
// Lookups may find nothing. Then looking has a price of its own: the next step waits for the tokens
// of this one, where it need not if no drafts are wanted. With the share of requests for which
// something is found,
//
//   step seconds(k)    = looking seconds + share * (seconds with k drafts each - looking seconds)
//   tokens per step(k) = 1 + share * accepted drafts(k)
//
// Nothing has to catch up, so kLeastLookupGain is enough to end lookups and to begin again. While
// no drafts are wanted, one step of kLookAgainSteps looks, if drafts would pay were they found for
// all, and its share decides at once.
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
    /// A step behind which drafts are looked up and none found; 0: there are always drafts.
    double looking_seconds = 0;
  };

  std::vector<Batch> batches;              // by rising num_requests; empty: nothing was measured
  std::vector<double> prompt_row_seconds;  // [k + 1] for a row of a prompt; empty: not measured

  /// Seconds of a step with `drafts` drafts per request, interpolated linearly between the batches.
  /// Beyond the largest batch they grow in proportion to the requests. There must be a batch.
  double Seconds(double num_requests, int32_t drafts) const;

  /// Whether drafts are looked up: there are not always some.
  bool look_up() const { return !batches.empty() && batches.front().looking_seconds > 0; }
  /// Batch::looking_seconds, likewise; no less than without drafts. There must be a batch.
  double LookingSeconds(double num_requests) const;
};

class DraftLengthPolicy {
 public:
  static constexpr double kLeastGain = 0.03;
  static constexpr int32_t kLastingSteps = 16;
  static constexpr double kLeastLookupGain = 0.005;
  static constexpr int32_t kLookAgainSteps = 32;

  /// Chooses 0 .. max_drafts; always max_drafts if `times` is empty.
  DraftLengthPolicy(int32_t max_drafts, StepTimes times);

  /// Chooses for the next step, in which `num_requests` requests verify.
  int32_t Choose(int32_t num_requests);

  /// Counts a step. tried [k]: requests whose draft i was reached, as those before it were right.
  /// accepted [k]: requests whose draft i was right and gave a token.
  void ObserveStep(std::span<const int32_t> tried, std::span<const int32_t> accepted);

  /// Counts the lookups of a step: the requests that it verified, and those of them that had
  /// drafts. Drafts had been wanted.
  void ObserveLookups(int32_t requests, int32_t found);

  /// Counts a request that has ended: the rows that were computed for its prompt, and the tokens
  /// that it got.
  void ObserveEnd(int64_t prompt_rows, int64_t tokens);

 private:
  /// The share of requests that have drafts where some are wanted.
  double Share() const { return times_.look_up() ? found_ / looked_ : 1; }
  double TokensPerStep(int32_t k, double share) const;
  double SecondsPerToken(int32_t k, int32_t num_requests, double share) const;
  int32_t Best(int32_t num_requests, double share) const;
  /// The best if it gains enough, else the chosen one.
  int32_t Better(int32_t num_requests) const;
  /// Drafts to look for, now and then, where none are chosen.
  int32_t LookAgain(int32_t num_requests);

  int32_t max_drafts_;
  StepTimes times_;
  int32_t chosen_ = -1;        // -1: none yet
  int32_t last_requests_ = 0;  // of the last step that verified
  int32_t lasting_ = 0;        // steps in a row in which another number promised more
  std::vector<double> tried_;
  std::vector<double> accepted_;
  double looked_ = 1;          // requests of late for which drafts were looked up
  double found_ = 1;           // and found
  int32_t steps_without_ = 0;  // since drafts were looked up last
  double prompt_rows_ = 0;     // of requests that ended lately
  double tokens_ = 0;
};

}  // namespace outrider
