#include "outrider/draft/draft_length_policy.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

// Acceptance at a position is a mean over about this number of drafts there.
constexpr double kRecentDrafts = 128;
// Where no draft was tried, what is known fades with this number of steps, towards kGuess, which
// counts as kGuessWeight drafts. So a number that was given up is tried again, every few thousand
// steps, in case the text has changed.
constexpr double kFadingSteps = 2048;
constexpr double kGuess = 0.8;
constexpr double kGuessWeight = 4;
// The share of lookups that find something is a mean over about this number of them.
constexpr double kRecentLookups = 32;
// Prompt rows per token are a mean over about this number of tokens.
constexpr double kRecentTokens = 4096;

/// On lines between the batches, and in proportion beyond the largest.
double Interpolate(const std::vector<StepTimes::Batch>& batches, double num_requests,
                   const auto& seconds) {
  const auto above = std::ranges::find_if(
      batches, [&](const StepTimes::Batch& batch) { return batch.num_requests >= num_requests; });
  if (above == batches.end()) {
    const StepTimes::Batch& last = batches.back();
    return seconds(last) * num_requests / last.num_requests;
  }
  if (above == batches.begin()) return seconds(*above);
  const StepTimes::Batch& below = *(above - 1);
  const double part =
      (num_requests - below.num_requests) / (above->num_requests - below.num_requests);
  return seconds(below) + part * (seconds(*above) - seconds(below));
}

}  // namespace

double StepTimes::Seconds(double num_requests, int32_t drafts) const {
  return Interpolate(batches, num_requests, [&](const Batch& batch) {
    return batch.seconds[static_cast<size_t>(drafts)];
  });
}

double StepTimes::LookingSeconds(double num_requests) const {
  return Interpolate(batches, num_requests, [](const Batch& batch) {
    return std::max(batch.looking_seconds, batch.seconds.front());
  });
}

DraftLengthPolicy::DraftLengthPolicy(int32_t max_drafts, StepTimes times)
    : max_drafts_(max_drafts),
      times_(std::move(times)),
      tried_(static_cast<size_t>(max_drafts), 0),
      accepted_(static_cast<size_t>(max_drafts), 0) {
  OUTRIDER_CHECK(max_drafts >= 1);
  const auto size = static_cast<size_t>(max_drafts) + 1;
  for (const auto& batch : times_.batches) OUTRIDER_CHECK(batch.seconds.size() == size);
  OUTRIDER_CHECK(times_.prompt_row_seconds.empty() || times_.prompt_row_seconds.size() == size);
}

double DraftLengthPolicy::TokensPerStep(int32_t k, double share) const {
  double tokens = 1;
  double reached = 1;
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    reached *= (accepted_[i] + kGuess * kGuessWeight) / (tried_[i] + kGuessWeight);
    tokens += share * reached;
  }
  return tokens;
}

double DraftLengthPolicy::SecondsPerToken(int32_t k, int32_t num_requests, double share) const {
  double seconds = times_.Seconds(num_requests, k);
  if (times_.look_up() && k > 0) {
    const double looking = times_.LookingSeconds(num_requests);
    seconds = looking + share * (seconds - looking);
  }
  const double decode = seconds / (num_requests * TokensPerStep(k, share));
  if (times_.prompt_row_seconds.empty() || tokens_ == 0) return decode;
  return decode + prompt_rows_ / tokens_ * times_.prompt_row_seconds[static_cast<size_t>(k)];
}

int32_t DraftLengthPolicy::Best(int32_t num_requests, double share) const {
  int32_t best = 0;
  for (int32_t k = 1; k <= max_drafts_; ++k) {
    const bool faster =
        SecondsPerToken(k, num_requests, share) < SecondsPerToken(best, num_requests, share);
    if (faster) best = k;
  }
  return best;
}

int32_t DraftLengthPolicy::Better(int32_t num_requests) const {
  const double share = Share();
  const int32_t best = Best(num_requests, share);
  const bool lookups = times_.look_up() && (best == 0 || chosen_ == 0);
  const double least_gain = lookups ? kLeastLookupGain : kLeastGain;
  const bool gains = SecondsPerToken(best, num_requests, share) <
                     (1 - least_gain) * SecondsPerToken(chosen_, num_requests, share);
  return gains ? best : chosen_;
}

int32_t DraftLengthPolicy::LookAgain(int32_t num_requests) {
  if (++steps_without_ < kLookAgainSteps) return 0;
  steps_without_ = 0;
  return Best(num_requests, /*share=*/1);
}

int32_t DraftLengthPolicy::Choose(int32_t num_requests) {
  if (times_.batches.empty()) return max_drafts_;
  if (num_requests == 0 && chosen_ >= 0) return chosen_;
  num_requests = std::max(num_requests, 1);
  if (chosen_ < 0) {
    last_requests_ = num_requests;
    return chosen_ = Best(num_requests, Share());
  }
  const int32_t better = Better(num_requests);
  const bool crowded =
      better < chosen_ && num_requests > last_requests_ && Better(last_requests_) == chosen_;
  last_requests_ = num_requests;
  lasting_ = better == chosen_ ? 0 : lasting_ + 1;
  // No more is learned of lookups while none are made.
  const bool found_again = times_.look_up() && chosen_ == 0;
  if (crowded || found_again || lasting_ >= kLastingSteps) {
    chosen_ = better;
    lasting_ = 0;
  }
  if (!times_.look_up() || chosen_ > 0) {
    steps_without_ = 0;
    return chosen_;
  }
  return LookAgain(num_requests);
}

void DraftLengthPolicy::ObserveStep(std::span<const int32_t> tried,
                                    std::span<const int32_t> accepted) {
  for (size_t i = 0; i < tried_.size(); ++i) {
    const double kept =
        tried[i] > 0 ? std::max(0.0, 1 - tried[i] / kRecentDrafts) : 1 - 1 / kFadingSteps;
    tried_[i] = tried_[i] * kept + tried[i];
    accepted_[i] = accepted_[i] * kept + accepted[i];
  }
}

void DraftLengthPolicy::ObserveLookups(int32_t requests, int32_t found) {
  const double kept = std::max(0.0, 1 - requests / kRecentLookups);
  looked_ = looked_ * kept + requests;
  found_ = found_ * kept + found;
}

void DraftLengthPolicy::ObserveEnd(int64_t prompt_rows, int64_t tokens) {
  const double kept = std::max(0.0, 1 - static_cast<double>(tokens) / kRecentTokens);
  prompt_rows_ = prompt_rows_ * kept + static_cast<double>(prompt_rows);
  tokens_ = tokens_ * kept + static_cast<double>(tokens);
}

}  // namespace outrider
