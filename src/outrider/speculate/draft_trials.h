// How long steps take with one number of drafts beside another, learned by trials, where few
// requests run.
//
// What such steps take depends on what caches hold. A prompt, and a change of the number, make the
// next ten or so slower, by shares that differ between numbers; and the machine's speed wanders by
// more than numbers differ. So steps are compared in blocks of one number. Where requests run one
// at a time blocks begin and end with them: then modules have nothing to catch up on, and the slow
// steps after a prompt count as often as they occur. A trial is a block of another number than the
// best. Its steps are compared with those of the blocks of the best before and after it, and
// nothing else says how long steps of two numbers take beside each other.
//
// Pure: no clock, no random numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/speculate/draft_step.h"

namespace outrider {

class DraftTrials {
 public:
  // Steps of a block that began with a request, at least and at most; a later request ends it.
  static constexpr int32_t kLeastBlock = 12;
  static constexpr int32_t kMostBlock = 64;
  /// Steps of a block that began in the midst of requests, and those before them that do not count
  /// if the number changes: the more requests the sooner steps settle.
  static int32_t BlockLength(double batch_size);
  static int32_t SettlingSteps(double batch_size);

  /// Of 0 .. max_drafts.
  explicit DraftTrials(int32_t max_drafts);

  /// Whether the block ends before the next step. begins: with it a request begins to verify that
  /// runs alone.
  bool IsBlockOver(bool begins, double batch_size) const;
  /// Ends the block, in which so many requests ran on average. The one after a trial tells what
  /// that took.
  void EndBlock(double batch_size);
  /// A trial's block, or the one after it, is yet to end.
  bool IsPending() const { return stage_ != Stage::kNone; }
  /// Starts a block; a trial's, unless it is one of the best.
  void StartBlock(int32_t drafts, bool is_trial, bool begins, double batch_size);
  /// The next steps, so many of them, are not counted.
  void DoNotCount(int32_t steps);
  /// There is no block, as there are many requests.
  void Abandon();

  /// The number of the block.
  int32_t drafts() const { return block_.drafts; }
  /// Whether the block before can be the one before a trial, which tells how `drafts` are beside
  /// all that is known.
  bool CanTry(int32_t drafts, int32_t best, double batch_size) const;
  /// Steps of the block that ended last.
  int32_t LastLength() const { return before_.steps; }

  /// After each step. Those with prompts do not count.
  void Observe(const DraftStep& step);

  /// Of this number with about so many requests, up to a few; 0: nothing is known.
  int32_t NumTrials(int32_t drafts, double batch_size) const;
  /// What steps took in the last trial, over what is known of them with it.
  double Surprise(int32_t drafts, double batch_size) const;
  /// A step with `drafts`, over one with `other`; both are known.
  double StepRatio(int32_t drafts, int32_t other, double batch_size) const;

 private:
  enum class Stage { kNone, kTrial, kAfter };

  /// A block that runs.
  struct Block {
    int32_t drafts = 0;
    bool begins = false;         // began with a request
    int32_t not_counted = 0;     // of the next steps
    std::vector<double> verify;  // seconds of each that counted
    std::vector<double> draft;
  };
  /// And one that has ended.
  struct Ended {
    double seconds = 0;  // of a step; 0: none counted
    int32_t steps = 0;
  };
  /// With about so many requests, of each number.
  struct Costs {
    std::vector<double> log_seconds;  // of a step, beside each other
    std::vector<double> surprise;     // of the last trial: what it said, less that
    std::vector<int32_t> trials;      // 0: nothing is known
  };

  static size_t IndexOf(double batch_size);
  /// Null if nothing is known with about so many requests.
  const Costs* Find(double batch_size) const;
  void Learn(Costs& costs, double log_ratio);

  int32_t max_drafts_;
  Stage stage_ = Stage::kNone;
  bool has_block_ = false;
  Block block_;
  Ended before_;
  Ended trial_;
  int32_t tried_ = 0;   // drafts of the trial,
  int32_t beside_ = 0;  // of the blocks before and after it
  std::vector<Costs> costs_;
};

}  // namespace outrider
