#include "outrider/speculate/draft_length_policy.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/error.h"

namespace outrider {

namespace {

// An estimate of acceptance is made of the drafts of about as many tokens as the first. While there
// is no news it shrinks to the second, which a probe of so many verifications balances.
constexpr double kMostTried = 128;
constexpr double kLeastTried = 6;
constexpr int32_t kProbeRequests = 8;
// Those of a probe that tells times only.
constexpr int32_t kTimedRequests = 3;
// The steps of a probe that had to catch up, at most.
constexpr double kMostProbeSteps = 16;
// Steps over which prompt rows are counted, and those that pay for catching up.
constexpr double kRecentSteps = 256;
// Tokens over which those of ended requests are counted.
constexpr double kRecentTokens = 4096;
// Steps over which the batch size is averaged, unless it changes by such a factor: it falls for a
// step whenever a request ends, and with what is best for one size and not for the next k would go
// to and fro and catch up each time.
constexpr double kBatchSteps = 16;
constexpr double kOtherBatch = 2;
// At first probes may lose so many times as much, for so many tokens.
constexpr double kLearningTokens = 1024;
constexpr double kLearningTimes = 2;
// Until so many tokens, the first k runs: what is measured first is slow, and would be believed
// until a probe is dared, which is dear once many rows are put off.
constexpr double kFirstTokens = 32;
// When a batch comes of a size of which nothing is known, the k that runs is judged in the step of
// the verification of this number, not in the first and in that of the second number at the latest:
// guesses from other sizes are rough, and a k that was left is dear to come back to.
constexpr int32_t kFirstRequests = 128;
constexpr int32_t kMostFirstSteps = 12;
// So many steps later one draft more is looked at, and then again after so many times as many, if
// it must catch up: what is measured first at a new size is slow, for some 40 steps. For so many
// steps, with dummies, if that loses no more time than so many take.
constexpr int32_t kLook = 64;
constexpr int32_t kLookLater = 8;
constexpr int32_t kMostLook = 1024;
constexpr double kLookSteps = 2;
constexpr double kMostLookLoss = 8;
// How much of a step's deviation is taken for a change of the machine's speed.
constexpr double kFollowed = 0.12;
// When the speed has changed by this factor, costs are in doubt, as those of other k may have
// changed by another one, and half of kLearningTokens are to come again.
constexpr double kMostDrift = 1.5;
// What a verification counts as a measurement where as many were made of about as many rows: most
// of what it says is the machine's speed.
constexpr double kKnownShare = 0.3;
constexpr double kFewMeasured = 4;
// Up to so many requests other numbers are tried for so many steps. What a cache holds follows the
// number only after some steps, and those of a crowd take too long for that to matter or to wait.
constexpr int32_t kFewRequests = 2;
constexpr double kTrialKnownShare = 1;
constexpr double kFewHysteresis = 0.03;
constexpr double kFirstCredit = 8;
constexpr double kDoubtCredit = 8;
constexpr double kTrialSteps = 14;
constexpr int32_t kSettlingSteps = 6;
constexpr double kTrialLoss = 2;
// Steps after a trial that tell the machine's speed, before its own are measured.
constexpr int32_t kStepsAfterTrial = 8;
// What a probe costs at least, of the time that it takes: predictions may be wrong.
constexpr double kLeastProbeLoss = 0.05;

double StepsOf(int32_t requests, int32_t batch_size) {
  return std::ceil(static_cast<double>(requests) / batch_size);
}

void LimitOutliers(std::vector<DraftStep>& steps) {
  std::vector<double> seconds;
  std::vector<double> draft_seconds;
  for (const DraftStep& step : steps) {
    if (step.prompt_rows > 0) continue;
    seconds.push_back(step.seconds);
    draft_seconds.push_back(step.draft_seconds);
  }
  if (seconds.empty()) return;
  for (auto* of : {&seconds, &draft_seconds}) std::ranges::nth_element(*of, of->begin() + of->size() / 2);
  const double most = RowCost::kOutlier * seconds[seconds.size() / 2];
  const double most_draft = RowCost::kOutlier * draft_seconds[seconds.size() / 2];
  for (DraftStep& step : steps) {
    if (step.prompt_rows > 0) continue;
    step.seconds = std::min(step.seconds, most);
    step.draft_seconds = std::min(step.draft_seconds, most_draft);
  }
}

}  // namespace

DraftLengthPolicy::DraftLengthPolicy(int32_t max_drafts, bool chained, bool may_use_dummies)
    : max_drafts_(max_drafts),
      chained_(chained),
      may_use_dummies_(may_use_dummies),
      // Drafts are good until they are seen to fail, so that they are tried.
      tried_(static_cast<size_t>(max_drafts), 1),
      accepted_(static_cast<size_t>(max_drafts), 1),
      trial_credit_(static_cast<size_t>(max_drafts) + 1, kFirstCredit) {
  OUTRIDER_CHECK(max_drafts >= 1);
}

double DraftLengthPolicy::TokensPerStep(int32_t k) const {
  double tokens = 1;
  double reached = 1;
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    reached *= accepted_[i] / tried_[i];
    tokens += reached;
  }
  return tokens;
}

/// A chain runs each module over the tokens of the step, and over the k before the frontier; a
/// repeated module runs over these tokens once, then over one row per request.
double DraftLengthPolicy::ModuleSeconds(int32_t k, double batch_size, double prompt_rows) const {
  if (k == 0) return 0;
  const double tokens = TokensPerStep(k);
  const double rows = chained_ ? std::max<double>(k, tokens) : tokens + k - 1;
  return Modules(k, batch_size, batch_size * rows + prompt_rows).Sum();
}

/// Requests may draft fewer than k.
double DraftLengthPolicy::EntryRows(int32_t k, double drafting, double rows) const {
  return std::max(rows - (k - InnerPasses(k)) * drafting, 0.0);
}

/// What was never measured takes as long as a row that drafts, which takes as long as an entry if
/// only that was. More rows than were measured take as many times more as verification does, as far
/// as that is known.
DraftLengthPolicy::ModuleParts DraftLengthPolicy::Modules(int32_t k, double drafting,
                                                          double rows) const {
  const auto seconds = [&](const RowCost& cost, double num_rows) {
    if (num_rows == 0) return 0.0;
    for (const RowCost* known : {&cost, &drafts_, &entries_}) {
      const double most = known->MostRows();
      if (most == 0) continue;
      const double s = known->Seconds(num_rows);
      const double reach = std::min(num_rows, verify_.MostRows());
      if (reach <= most) return s;
      const double times = verify_.Seconds(reach) / verify_.Seconds(most) * (num_rows / reach);
      return std::min(s, known->Seconds(most) * times);
    }
    return 0.0;
  };
  return {.inner = InnerPasses(k) * seconds(inner_, rows),
          .drafts = (k - InnerPasses(k)) * seconds(drafts_, drafting),
          .entries = seconds(entries_, EntryRows(k, drafting, rows))};
}

double DraftLengthPolicy::CatchUpSeconds(int32_t k, std::span<const int64_t> rows_put_off) const {
  const auto rows = static_cast<double>(rows_put_off[static_cast<size_t>(k)]);
  return rows > 0 ? Modules(k, 0, chained_ ? rows / k : rows).Sum() : 0;
}

double DraftLengthPolicy::StepSeconds(int32_t k, double batch_size) const {
  return verify_.Seconds(batch_size * (1 + k)) + ModuleSeconds(k, batch_size, 0);
}

double DraftLengthPolicy::SecondsPerToken(int32_t k, double batch_size) const {
  const double decode = StepSeconds(k, batch_size) / (batch_size * TokensPerStep(k));
  if (prompt_steps_ == 0 || ended_tokens_ == 0) return decode;
  const double rows = prompt_rows_ / prompt_steps_;
  const double prompt = ModuleSeconds(k, batch_size, rows) - ModuleSeconds(k, batch_size, 0);
  return decode + ended_prompt_rows_ / ended_tokens_ * prompt / rows;
}

DraftLength DraftLengthPolicy::Choose(int32_t batch_size, std::span<const int64_t> rows_put_off) {
  const DraftLength length = ChooseNext(batch_size, rows_put_off);
  steps_of_length_ = length.drafts == drafts_chosen_ ? steps_of_length_ + 1 : 1;
  drafts_chosen_ = length.drafts;
  return length;
}

DraftLength DraftLengthPolicy::ChooseNext(int32_t batch_size,
                                          std::span<const int64_t> rows_put_off) {
  if (batch_size == 0) return {best_};
  if (batch_size > kFewRequests && steps_after_trial_ > 0) EndTrial();
  const bool is_other = batch_size > kOtherBatch * batch_ || kOtherBatch * batch_size < batch_;
  batch_ += (batch_size - batch_) / (is_other ? 1 : kBatchSteps);
  if (is_other && verify_.Weight(batch_ * (1 + best_)) == 0) {
    first_steps_ = std::clamp(kFirstRequests / batch_size, 2, kMostFirstSteps);
    look_in_ = look_interval_ = kLook;
  }
  first_steps_ = std::max(first_steps_ - 1, 0);
  if (tokens_learned_ < kFirstTokens || first_steps_ > 0) return {best_};
  if (probe_requests_ <= 0 && steps_after_trial_ == 0) {
    const int32_t before = best_;
    double least = (1 - (batch_ <= kFewRequests ? kFewHysteresis : kHysteresis)) * SecondsPerToken(best_, batch_);
    for (int32_t k = 0; k <= max_drafts_; ++k) {
      const double seconds =
          SecondsPerToken(k, batch_) + CatchUpSeconds(k, rows_put_off) / (kRecentSteps * batch_);
      if (seconds >= least) continue;
      least = seconds;
      best_ = k;
    }
    // What is known of the k that was left may be of a slow moment: a probe of it says as much.
    if (best_ != before && batch_size > kFewRequests) verify_.Doubt();
    if (StepSeconds(best_, batch_) > 0) ChooseProbe(batch_size, rows_put_off);
  }
  if (probe_requests_ <= 0) return {best_};
  probe_requests_ -= batch_size;
  return probe_;
}

void DraftLengthPolicy::ChooseProbe(int32_t batch_size, std::span<const int64_t> rows_put_off) {
  if (batch_size <= kFewRequests) {
    for (int32_t k = 0; k <= max_drafts_; ++k) {
      double& credit = trial_credit_[static_cast<size_t>(k)];
      if (k == best_ || !ProbeDrafts(k, batch_size, CatchUpSeconds(k, rows_put_off), 0,
                                        credit * StepSeconds(best_, batch_))) {
        continue;
      }
      credit = 0;
      steps_after_trial_ = kStepsAfterTrial;
      slowness_before_trial_ = slowness_;
      return;
    }
    return;
  }
  if (best_ < max_drafts_) {
    const double catch_up = CatchUpSeconds(best_ + 1, rows_put_off);
    if (look_in_ > 0 && --look_in_ == 0 && LookAtMore(batch_size, catch_up)) return;
    if (ProbeDrafts(best_ + 1, batch_size, catch_up, kMostProbeSteps, more_credit_)) {
      more_credit_ =
          0;  // what was saved up while probes were dear is not spent when they are cheap
      return;
    }
  }
  if (best_ > 0 && ProbeDrafts(best_ - 1, batch_size, 0, 0, fewer_credit_)) fewer_credit_ = 0;
}

bool DraftLengthPolicy::LookAtMore(int32_t batch_size, double catch_up) {
  look_in_ = look_interval_ = std::min(kLookLater * look_interval_, kMostLook);
  if (catch_up == 0) return false;  // probes are cheap
  const double may_lose = kMostLookLoss * StepSeconds(best_, batch_);
  if (!may_use_dummies_) {
    look_in_ = 0;  // once
    return ProbeDrafts(best_ + 1, batch_size, catch_up, kLookSteps, may_lose);
  }
  if (!ProbeDummies(batch_size, may_lose)) return false;
  verify_.Doubt(batch_ * (2 + best_));  // it was measured in other times
  return true;
}

bool DraftLengthPolicy::ProbeDrafts(int32_t k, int32_t batch_size, double catch_up,
                                    double most_steps, double may_lose) {
  const double share = 1 - SecondsPerToken(best_, batch_) / SecondsPerToken(k, batch_);
  const double lost_by_step = StepSeconds(k, batch_) * std::max(share, kLeastProbeLoss);
  const double least_steps = batch_size <= kFewRequests
                                 ? kTrialSteps
                                 : StepsOf(k > best_ ? kProbeRequests : kTimedRequests, batch_size);
  // What had to catch up runs until it has lost as much again: that says more of it.
  const double steps =
      std::clamp(catch_up / lost_by_step, least_steps, std::max(most_steps, least_steps));
  const double change = batch_size <= kFewRequests ? kTrialLoss * StepSeconds(best_, batch_) : 0;
  return StartProbe({k}, batch_size, steps, change + catch_up + steps * lost_by_step, may_lose);
}

bool DraftLengthPolicy::ProbeDummies(int32_t batch_size, double may_lose) {
  const double verify = verify_.Seconds(batch_ * (1 + best_));
  const double more = verify_.Seconds(batch_ * (2 + best_)) - verify;
  const double lost_by_step = std::max(more, kLeastProbeLoss * verify);
  const double steps = std::max(StepsOf(kTimedRequests, batch_size), kLookSteps);
  return StartProbe({best_, 1}, batch_size, steps, steps * lost_by_step, may_lose);
}

bool DraftLengthPolicy::StartProbe(DraftLength length, int32_t batch_size, double steps,
                                   double lost, double may_lose) {
  if (may_lose < lost) return false;
  probe_ = length;
  probe_requests_ = static_cast<int32_t>(steps * batch_size);
  return true;
}

void DraftLengthPolicy::Observe(const DraftStep& step) {
  const double credits = tokens_learned_ < kLearningTokens ? kLearningTimes : 1;
  tokens_learned_ = std::min(tokens_learned_ + step.tokens, kLearningTokens);
  const double seconds = credits * (step.seconds + step.draft_seconds) / slowness_;
  more_credit_ += kMoreShare * seconds;
  fewer_credit_ += kFewerShare * seconds;
  for (double& credit : trial_credit_) credit += kTrialShare;
  CountAccepted(step);
  constexpr double kKept = 1 - 1 / kRecentSteps;
  prompt_rows_ = prompt_rows_ * kKept + step.prompt_rows;
  prompt_steps_ = prompt_steps_ * kKept + (step.prompt_rows > 0 ? 1 : 0);
  const double forgotten = std::min(static_cast<double>(step.ended_tokens) / kRecentTokens, 1.0);
  ended_prompt_rows_ +=
      static_cast<double>(step.ended_prompt_rows) - forgotten * ended_prompt_rows_;
  ended_tokens_ += static_cast<double>(step.ended_tokens) - forgotten * ended_tokens_;
  const bool is_trial = steps_after_trial_ > 0;
  if (batch_ <= kFewRequests && steps_of_length_ <= kSettlingSteps &&
      (step.verify_rows == 0 || verify_.Weight(step.verify_rows) > 0)) return;
  if (is_trial && drafts_chosen_ != best_) {
    trial_.push_back(step);
    return;
  }
  const double times = MeasureVerification(step, kKnownShare);
  if (times > 0) FollowSpeed(times);
  MeasureModules(step);
  if (is_trial && --steps_after_trial_ == 0) EndTrial();
}

/// At the speed that the machine had in the middle, if it changed evenly.
void DraftLengthPolicy::EndTrial() {
  const double slowness = slowness_;
  slowness_ = std::sqrt(slowness * slowness_before_trial_);
  LimitOutliers(trial_);
  for (const DraftStep& step : trial_) {
    MeasureVerification(step, kTrialKnownShare);
    MeasureModules(step);
  }
  slowness_ = slowness;
  trial_.clear();
  steps_after_trial_ = 0;
}

/// What modules took is divided between their parts as it was expected to divide, at first as their
/// rows do, and says the less of a part the smaller that is.
void DraftLengthPolicy::MeasureModules(const DraftStep& step) {
  if (step.depth == 0 || step.module_rows == 0) return;
  const auto all_rows = static_cast<double>(step.module_rows);
  const double rows = chained_ ? all_rows / step.depth : all_rows;
  const int32_t num_inner = InnerPasses(step.depth);
  const int32_t num_last = step.depth - num_inner;
  const double entries = EntryRows(step.depth, step.drafting, rows);
  ModuleParts parts = Modules(step.depth, step.drafting, rows);
  if (parts.Sum() == 0) {
    parts = {
        .inner = num_inner * rows, .drafts = 1.0 * num_last * step.drafting, .entries = entries};
  }
  const auto learn = [&](RowCost& cost, double num_rows, double part, int32_t times) {
    const double share = part / parts.Sum();
    if (share == 0) return;
    cost.Learn(num_rows, step.draft_seconds / slowness_ * share / times, share * share);
  };
  learn(inner_, rows, parts.inner, num_inner);
  learn(drafts_, step.drafting, parts.drafts, num_last);
  learn(entries_, entries, parts.entries, 1);
}

void DraftLengthPolicy::CountAccepted(const DraftStep& step) {
  if (step.tokens == 0) return;
  const double forgotten = std::max(1 - step.tokens / kMostTried, 0.0);
  for (size_t i = 0; i < tried_.size(); ++i) {
    const double kept = std::max(forgotten, std::min(kLeastTried / tried_[i], 1.0));
    tried_[i] = tried_[i] * kept + step.tried[i];
    accepted_[i] = accepted_[i] * kept + step.accepted[i];
  }
}

/// A step that both verified and computed prompts is divided as it was expected to divide, and says
/// the less of a part the smaller that is. Until one was measured its rows are taken for rows of
/// the other: under load there may be no step of one kind only.
double DraftLengthPolicy::MeasureVerification(const DraftStep& step, double known_share) {
  if (step.prompt_rows == 0 && step.verify_rows == 0) return 0;
  double verify = verify_.Seconds(step.verify_rows);
  double prompt = prompt_.Seconds(step.prompt_rows);
  if (verify == 0) verify = prompt_.Seconds(step.verify_rows);
  if (prompt == 0) prompt = verify_.Seconds(step.prompt_rows);
  if (verify + prompt == 0) {
    verify = step.verify_rows;
    prompt = step.prompt_rows;
  }
  const double share = verify / (verify + prompt);
  const bool is_known = step.verify_rows > 0 && verify_.Weight(step.verify_rows) >= kFewMeasured;
  const double seconds = step.seconds / slowness_;
  const double counts = is_known ? known_share : 1;
  if (step.verify_rows > 0) {
    verify_.Learn(step.verify_rows, seconds * share, counts * share * share);
  }
  if (step.prompt_rows > 0) {
    prompt_.Learn(step.prompt_rows, seconds * (1 - share), (1 - share) * (1 - share));
  }
  return is_known ? seconds / (verify + prompt) : 0;
}

/// A step whose verification was known took so many `times` what was expected. Its cost has learned
/// from the same deviation: where one saw deviations that the other did not, they would drift apart
/// for as long as a number of drafts runs, and with them the costs of all others. When they are in
/// doubt costs take over what the speed has become.
void DraftLengthPolicy::FollowSpeed(double times) {
  slowness_ *= std::exp(kFollowed * (std::min(times, RowCost::kOutlier) - 1));
  if (std::max(slowness_, 1 / slowness_) <= kMostDrift) return;
  if (tokens_learned_ == kLearningTokens) {
    for (double& credit : trial_credit_) credit += kDoubtCredit;
  }
  tokens_learned_ /= 2;
  prompt_.Scale(slowness_);
  for (RowCost* const of_k : {&verify_, &inner_, &drafts_, &entries_}) {
    of_k->Scale(slowness_);
    of_k->Doubt();
  }
  slowness_before_trial_ /= slowness_;
  more_credit_ *= slowness_;
  fewer_credit_ *= slowness_;
  slowness_ = 1;
}

}  // namespace outrider
