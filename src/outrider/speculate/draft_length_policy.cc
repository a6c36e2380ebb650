// Longer than most files: what is chosen and what is learned from steps share the costs, the
// credits and nearly all constants, so that two files would each need the other beside it.
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
// Steps of a new load before the first trial in the midst of requests: the first ones are slow.
constexpr int32_t kTryAfter = 48;
// What a change to another number and back loses, in steps, for each that does not count after it.
constexpr double kTrialLoss = 0.17;
// Steps that trials of each number may lose at first.
constexpr double kFirstCredit = 8;
// What one trial says is wrong by this share, what several say by less.
constexpr double kTrialScatter = 0.05;
// What a trial is expected to lose at least, of the time of as many tokens, and at most, in steps:
// what is known of a number that is seldom tried may be of other times.
constexpr double kLeastTrialLoss = 0.02;
constexpr double kMostTrialLoss = 16;
// What a probe costs at least, of the time that it takes: predictions may be wrong.
constexpr double kLeastProbeLoss = 0.05;

double StepsOf(int32_t requests, int32_t batch_size) {
  return std::ceil(static_cast<double>(requests) / batch_size);
}

}  // namespace

DraftLengthPolicy::DraftLengthPolicy(int32_t max_drafts, bool chained, bool may_use_dummies)
    : max_drafts_(max_drafts),
      chained_(chained),
      may_use_dummies_(may_use_dummies),
      // Drafts are good until they are seen to fail, so that they are tried.
      tried_(static_cast<size_t>(max_drafts), 1),
      accepted_(static_cast<size_t>(max_drafts), 1),
      trial_credit_(static_cast<size_t>(max_drafts) + 1, kFirstCredit),
      trials_(max_drafts) {
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

double DraftLengthPolicy::DecodeSecondsPerToken(int32_t k, double batch_size) const {
  return StepSeconds(k, batch_size) / (batch_size * TokensPerStep(k));
}

double DraftLengthPolicy::PromptSecondsPerToken(int32_t k, double batch_size) const {
  if (prompt_steps_ == 0 || ended_tokens_ == 0) return 0;
  const double rows = prompt_rows_ / prompt_steps_;
  const double prompt = ModuleSeconds(k, batch_size, rows) - ModuleSeconds(k, batch_size, 0);
  return ended_prompt_rows_ / ended_tokens_ * prompt / rows;
}

double DraftLengthPolicy::SecondsPerToken(int32_t k, double batch_size) const {
  return DecodeSecondsPerToken(k, batch_size) + PromptSecondsPerToken(k, batch_size);
}

DraftLength DraftLengthPolicy::Choose(int32_t batch_size, std::span<const int64_t> rows_put_off) {
  const DraftLength length = ChooseNext(batch_size, rows_put_off);
  last_batch_size_ = batch_size;
  return length;
}

DraftLength DraftLengthPolicy::ChooseNext(int32_t batch_size,
                                          std::span<const int64_t> rows_put_off) {
  if (batch_size == 0) return {trials_.IsPending() ? trials_.drafts() : best_};
  const bool is_other = batch_size > kOtherBatch * batch_ || kOtherBatch * batch_size < batch_;
  batch_ += (batch_size - batch_) / (is_other ? 1 : kBatchSteps);
  if (is_other) same_load_ = 0;
  if (is_other && verify_.Weight(batch_ * (1 + best_)) == 0) {
    first_steps_ = std::clamp(kFirstRequests / batch_size, 2, kMostFirstSteps);
    look_in_ = look_interval_ = kLook;
  }
  first_steps_ = std::max(first_steps_ - 1, 0);
  const bool is_early = tokens_learned_ < kFirstTokens || first_steps_ > 0;
  if (!HasFew() || is_early) trials_.Abandon();
  if (is_early) return {best_};
  if (probe_requests_ <= 0) {
    if (HasFew()) {
      ChooseOfFew(rows_put_off);
    } else {
      ChooseBest(rows_put_off);
    }
    if (StepSeconds(best_, batch_) > 0) ChooseProbe(batch_size, rows_put_off);
  }
  if (probe_requests_ <= 0) return {HasFew() ? trials_.drafts() : best_};
  probe_requests_ -= batch_size;
  if (HasFew()) trials_.DoNotCount(2);  // this step and the one that verifies
  return probe_;
}

void DraftLengthPolicy::ChooseOfFew(std::span<const int64_t> rows_put_off) {
  const bool begins = last_batch_size_ == 0;
  same_load_ = begins ? 0 : same_load_ + 1;
  if (!trials_.IsBlockOver(begins, batch_)) return;
  trials_.EndBlock(batch_);
  if (trials_.IsPending()) {
    trials_.StartBlock(best_, false, begins, batch_);
    return;
  }
  const int32_t before = best_;
  ChooseBest(rows_put_off);
  const bool may_try = begins || same_load_ >= kTryAfter;
  const int32_t k = best_ == before && may_try ? ChooseTrial(rows_put_off, begins) : best_;
  trials_.StartBlock(k, k != best_, begins, batch_);
}

void DraftLengthPolicy::ChooseBest(std::span<const int64_t> rows_put_off) {
  const int32_t before = best_;
  double least = 1;
  for (int32_t k = 0; k <= max_drafts_; ++k) {
    if (k == before) continue;
    const double cost = CostBeside(before, k, rows_put_off);
    if (cost >= std::min(least, 1 - LeastGain(k))) continue;
    least = cost;
    best_ = k;
  }
  // What is known of the k that was left may be of a slow moment: a probe of it says as much. Not
  // so the steps that still verify its drafts, which are of the same moment.
  if (best_ != before) doubt_in_ = 2;
}

double DraftLengthPolicy::LeastGain(int32_t k) const {
  if (!HasFew()) return k < best_ ? 0 : kHysteresis;
  const int32_t trials = trials_.NumTrials(k, batch_);
  return trials > 0 ? kTrialScatter / std::sqrt(trials) : 1;
}

double DraftLengthPolicy::CostBeside(int32_t other, int32_t k,
                                     std::span<const int64_t> rows_put_off) const {
  double decode = DecodeSecondsPerToken(k, batch_);
  if (HasFew() && trials_.NumTrials(k, batch_) > 0 && trials_.NumTrials(other, batch_) > 0) {
    decode = DecodeSecondsPerToken(other, batch_) * TokensPerStep(other) / TokensPerStep(k) *
             trials_.StepRatio(k, other, batch_);
  }
  const double catch_up = CatchUpSeconds(k, rows_put_off) / (kRecentSteps * batch_);
  return (decode + PromptSecondsPerToken(k, batch_) + catch_up) / SecondsPerToken(other, batch_);
}

void DraftLengthPolicy::ChooseProbe(int32_t batch_size, std::span<const int64_t> rows_put_off) {
  if (trials_.IsPending()) return;
  if (best_ < max_drafts_) {
    const double catch_up = CatchUpSeconds(best_ + 1, rows_put_off);
    const bool looks = !HasFew() || catch_up > kFirstCredit * StepSeconds(best_, batch_);
    if (looks && look_in_ > 0) {
      --look_in_;
      if (look_in_ == 0 && LookAtMore(batch_size, catch_up)) return;
    }
    if (!HasFew() && ProbeDrafts(best_ + 1, batch_size, catch_up, kMostProbeSteps, more_credit_)) {
      // What was saved up while probes were dear is not spent when they are cheap.
      more_credit_ = 0;
      return;
    }
  }
  if (!HasFew() && best_ > 0 && ProbeDrafts(best_ - 1, batch_size, 0, 0, fewer_credit_)) {
    fewer_credit_ = 0;
  }
}

/// A trial lasts as long as the best takes for a request, or a block in the midst of requests.
double DraftLengthPolicy::TrialLoss(int32_t k, std::span<const int64_t> rows_put_off,
                                    bool begins) const {
  const double length = DraftTrials::SettlingSteps(batch_) + DraftTrials::BlockLength(batch_);
  // Of the best, for as many tokens.
  const double steps =
      begins ? trials_.LastLength() : length * TokensPerStep(k) / TokensPerStep(best_);
  const double share = std::max(CostBeside(best_, k, rows_put_off) - 1, kLeastTrialLoss);
  return std::min(share * steps, kMostTrialLoss) +
         (begins ? 0 : kTrialLoss * DraftTrials::SettlingSteps(batch_)) +
         CatchUpSeconds(k, rows_put_off) / StepSeconds(best_, batch_);
}

/// What promises to be the best comes first, whatever it may lose: it was not tried often enough,
/// or the last trial said so and those before did not.
int32_t DraftLengthPolicy::ChooseTrial(std::span<const int64_t> rows_put_off, bool begins) {
  int32_t chosen = best_;
  double least = 1 - kHysteresis;
  for (int32_t k = 0; k <= max_drafts_; ++k) {
    if (k == best_ || !trials_.CanTry(k, best_, batch_)) continue;
    const double promised =
        CostBeside(best_, k, rows_put_off) * std::min(trials_.Surprise(k, batch_), 1.0);
    if (promised < least) {
      least = promised;
      chosen = k;
    } else if (chosen == best_ &&
               trial_credit_[static_cast<size_t>(k)] >= TrialLoss(k, rows_put_off, begins)) {
      chosen = k;
    }
  }
  if (chosen == best_) return best_;
  trial_credit_[static_cast<size_t>(chosen)] = 0;
  return chosen;
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
  const double least_steps = StepsOf(k > best_ ? kProbeRequests : kTimedRequests, batch_size);
  // What had to catch up runs until it has lost as much again: that says more of it.
  const double steps =
      std::clamp(catch_up / lost_by_step, least_steps, std::max(most_steps, least_steps));
  return StartProbe({k}, batch_size, steps, catch_up + steps * lost_by_step, may_lose);
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
  for (int32_t k = 0; k <= max_drafts_; ++k) {
    trial_credit_[static_cast<size_t>(k)] += k < best_ ? kFewerTrialShare : kMoreTrialShare;
  }
  CountAccepted(step);
  constexpr double kKept = 1 - 1 / kRecentSteps;
  prompt_rows_ = prompt_rows_ * kKept + step.prompt_rows;
  prompt_steps_ = prompt_steps_ * kKept + (step.prompt_rows > 0 ? 1 : 0);
  const double forgotten = std::min(static_cast<double>(step.ended_tokens) / kRecentTokens, 1.0);
  ended_prompt_rows_ +=
      static_cast<double>(step.ended_prompt_rows) - forgotten * ended_prompt_rows_;
  ended_tokens_ += static_cast<double>(step.ended_tokens) - forgotten * ended_tokens_;
  trials_.Observe(step);
  const double times = MeasureVerification(step);
  if (times > 0) FollowSpeed(times);
  MeasureModules(step);
  if (doubt_in_ > 0 && step.depth == best_ && --doubt_in_ == 0) verify_.Doubt();
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
  const double seconds = step.draft_seconds / slowness_;
  const auto learn = [&](RowCost& cost, double num_rows, double part, int32_t times) {
    const double share = part / parts.Sum();
    if (share == 0) return;
    cost.Learn(num_rows, seconds * share / times, share * share);
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
double DraftLengthPolicy::MeasureVerification(const DraftStep& step) {
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
  const double counts = is_known ? kKnownShare : 1;
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
  tokens_learned_ /= 2;
  prompt_.Scale(slowness_);
  for (RowCost* const of_k : {&verify_, &inner_, &drafts_, &entries_}) {
    of_k->Scale(slowness_);
    of_k->Doubt();
  }
  more_credit_ *= slowness_;
  fewer_credit_ *= slowness_;
  slowness_ = 1;
}

}  // namespace outrider
