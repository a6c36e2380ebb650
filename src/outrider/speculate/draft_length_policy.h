// How many tokens to draft next: the number that gives the most tokens per second, by what drafts
// were accepted and what steps took.
//
// For each k it predicts the seconds per token,
//
//   (verify(batch * (1 + k)) + modules(k, batch)) / (batch * tokens per step(k))
//
// and what the modules take for prompts, from the share of drafts accepted at each place and from
// learned functions of a number of rows: what verification, prompts and modules take. The best k
// runs when it promises kHysteresis more than the one that does, catching up included, or anything
// more if it drafts less: between equals the speed without drafts must not be lost. Now and then
// one beside it runs for a moment, so that what is known of it does not grow old: as often as the
// time that this is expected to lose stays within a share. What verification takes for more drafts
// can be known without computing them, for which modules may have to catch up on all that they put
// off: dummies are verified in their place.
//
// With few requests, where caches make steps depend on those before them, how long steps of one
// number take beside another is learned from trials instead (draft_trials.h), which every number
// has now and then; the functions of rows say which are worth one, and what prompts take.
//
// A machine's speed can halve and double within a second, by far more than numbers of drafts
// differ. So all times are divided by how slow the machine is at the moment, which follows what
// steps of known sizes take beside what they took: a probe is compared with the steps around it.
//
// Pure: no clock, no random numbers. Output never depends on k, so it may follow measured times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/speculate/draft_trials.h"
#include "outrider/speculate/row_cost.h"

namespace outrider {

/// What the next step verifies of each request after its last known token.
struct DraftLength {
  int32_t drafts = 0;   // that modules compute
  int32_t dummies = 0;  // tokens after them that nobody guessed
};

class DraftLengthPolicy {
 public:
  // Of the time, lost to probes of one draft more and of one less than the best.
  static constexpr double kMoreShare = 0.002;
  static constexpr double kFewerShare = 0.001;
  static constexpr double kHysteresis = 0.03;  // gain that more drafts must promise
  // So many requests have trials. Of the time, lost to those of each k above and below the best.
  static constexpr int32_t kFewRequests = 8;
  static constexpr double kMoreTrialShare = 0.001;
  static constexpr double kFewerTrialShare = 0.002;

  /// Chooses 0 .. max_drafts. chained: module m drafts token m; otherwise one module drafts all.
  /// may_use_dummies: verifying a token that nobody guessed does not change what is generated.
  DraftLengthPolicy(int32_t max_drafts, bool chained, bool may_use_dummies);

  /// For the next step, in which `batch_size` requests verify. rows_put_off [k + 1]: module rows
  /// that must run before so many can be drafted.
  DraftLength Choose(int32_t batch_size, std::span<const int64_t> rows_put_off);

  /// After each step.
  void Observe(const DraftStep& step);

 private:
  double TokensPerStep(int32_t k) const;
  double StepSeconds(int32_t k, double batch_size) const;
  /// What modules take, by what is read of their rows.
  struct ModuleParts {
    double inner = 0;    // of those before a chain's last: the outputs of all rows
    double drafts = 0;   // the outputs of rows that draft
    double entries = 0;  // nothing but cache entries
    double Sum() const { return inner + drafts + entries; }
  };
  /// Of k modules of a chain over `rows` rows each, or of one that runs k times over so many in
  /// all, for so many requests that draft.
  ModuleParts Modules(int32_t k, double drafting, double rows) const;
  /// Of these rows, those that make entries only.
  double EntryRows(int32_t k, double drafting, double rows) const;
  /// Passes of modules before the last of a chain.
  int32_t InnerPasses(int32_t k) const { return chained_ ? k - 1 : 0; }
  double ModuleSeconds(int32_t k, double batch_size, double prompt_rows) const;
  /// Of what must run before k can be drafted.
  double CatchUpSeconds(int32_t k, std::span<const int64_t> rows_put_off) const;
  double DecodeSecondsPerToken(int32_t k, double batch_size) const;
  /// What modules take for prompts.
  double PromptSecondsPerToken(int32_t k, double batch_size) const;
  double SecondsPerToken(int32_t k, double batch_size) const;
  void CountAccepted(const DraftStep& step);
  /// Returns how many times as long as expected it took, 0 if that was not known well.
  double MeasureVerification(const DraftStep& step);
  void MeasureModules(const DraftStep& step);
  void FollowSpeed(double times);
  bool HasFew() const { return batch_ <= kFewRequests; }
  DraftLength ChooseNext(int32_t batch_size, std::span<const int64_t> rows_put_off);
  void ChooseOfFew(std::span<const int64_t> rows_put_off);
  void ChooseBest(std::span<const int64_t> rows_put_off);
  /// The share that k must gain to become the best; 1: it may not, as it needs a trial first.
  double LeastGain(int32_t k) const;
  /// Seconds per token with k over those with `other`, catching up included.
  double CostBeside(int32_t other, int32_t k, std::span<const int64_t> rows_put_off) const;
  void ChooseProbe(int32_t batch_size, std::span<const int64_t> rows_put_off);
  /// Steps of the best that a trial is expected to lose.
  double TrialLoss(int32_t k, std::span<const int64_t> rows_put_off, bool begins) const;
  /// The k that has a trial next, best_ if none.
  int32_t ChooseTrial(std::span<const int64_t> rows_put_off, bool begins);
  // Each starts a probe unless it is expected to lose more than may_lose seconds, and says so: what
  // looks at one draft more now and then, one of so many drafts, one of a dummy more.
  bool LookAtMore(int32_t batch_size, double catch_up);
  bool ProbeDrafts(int32_t k, int32_t batch_size, double catch_up, double most_steps,
                   double may_lose);
  bool ProbeDummies(int32_t batch_size, double may_lose);
  bool StartProbe(DraftLength length, int32_t batch_size, double steps, double lost,
                  double may_lose);

  int32_t max_drafts_;
  bool chained_;
  bool may_use_dummies_;
  double slowness_ = 1;  // steps take so many times what the costs say
  RowCost verify_;
  RowCost prompt_;
  // One pass of one module. The outputs of a chain's last one, and of one alone, are read where it
  // drafts only: of a prompt, and of what modules catch up on, there are cache entries to make.
  RowCost inner_;
  RowCost drafts_;
  RowCost entries_;
  // [k] As in DraftStep, lately.
  std::vector<double> tried_;
  std::vector<double> accepted_;
  // Lately. A prompt counts when its request has ended, along with the tokens it was for: when many
  // arrive at once, those are yet to come.
  double prompt_rows_ = 0;
  double prompt_steps_ = 0;
  double ended_prompt_rows_ = 0;
  double ended_tokens_ = 0;
  int32_t doubt_in_ = 0;  // steps of the best k before what is known is doubted; 0: not to be
  double batch_ = 0;      // requests that verify, lately
  // At a batch size of which nothing is known: steps that are left of the first ones.
  int32_t first_steps_ = 0;
  // Steps until one draft more is looked at, 0: never; and between looks.
  int32_t look_in_ = 0;
  int32_t look_interval_ = 0;

  int32_t best_ = 1;            // at first: never far from the best
  DraftLength probe_;           // what is probed, while requests are left for it
  int32_t probe_requests_ = 0;  // counted once per step
  // Seconds that probes of more and of fewer drafts may lose. Each saves up for itself: some cost
  // hundreds of times as much as others.
  double more_credit_ = 0;
  double fewer_credit_ = 0;
  // [k] Steps of the best that a trial of k may lose, each for itself for the same reason.
  std::vector<double> trial_credit_;
  DraftTrials trials_;
  int32_t last_batch_size_ = 0;  // of the step before
  int32_t same_load_ = 0;        // steps since another number of requests ran, or one began alone
  double tokens_learned_ = 0;    // up to kLearningTokens; halved when costs are in doubt
};

}  // namespace outrider
