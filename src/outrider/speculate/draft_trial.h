// A trial: another number of drafts than the best runs for some steps, and is compared with the
// steps before and after it.
//
// What it took is divided by how slow the machine was meanwhile. The steps before alone would tell
// the speed of some ten steps earlier, and that can be another one by more than numbers of drafts
// differ. So the steps of a trial are kept until some of the best number have followed, and the
// speed is taken for the mean of both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

/// What a step did, for the policy.
struct DraftStep {
  double seconds = 0;        // of all but drafting
  double draft_seconds = 0;  // of `depth` modules, or of one that ran so often
  int32_t depth = 0;         // drafts that were asked for
  int64_t module_rows = 0;   // over all modules
  int32_t drafting = 0;      // requests that modules drafted for
  int32_t prompt_rows = 0;   // rows that are not part of a verification
  int32_t verify_rows = 0;
  int32_t tokens = 0;  // that the verification gave
  // Of the requests that ended in it: prompt rows that were computed for them, tokens they got.
  int64_t ended_prompt_rows = 0;
  int64_t ended_tokens = 0;
  /// [k] Requests whose draft i was reached, those before it being right, and those where it gained
  /// a token.
  std::span<const int32_t> tried = {};
  std::span<const int32_t> accepted = {};
};

class DraftTrial {
 public:
  /// From Start to Take.
  bool IsPending() const { return steps_after_ > 0; }

  /// At this speed of the machine.
  void Start(double slowness);

  /// A step of the number that is tried.
  void Add(const DraftStep& step);
  /// A step of the best after them. Returns whether enough have followed.
  bool AddAfter() { return --steps_after_ == 0; }

  /// What was so slow counts as 1 from now on.
  void Rescale(double slowness) { slowness_before_ /= slowness; }

  struct Result {
    double slowness = 1;  // meanwhile
    std::vector<DraftStep> steps;
  };
  /// Ends it, the machine being so slow now. No step takes much longer than most of them.
  Result Take(double slowness);

 private:
  int32_t steps_after_ = 0;  // that are yet to come; 0: there is no trial
  double slowness_before_ = 1;
  std::vector<DraftStep> steps_;
};

}  // namespace outrider
