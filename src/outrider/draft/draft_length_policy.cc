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
// Prompt rows per token are a mean over about this number of tokens.
constexpr double kRecentTokens = 4096;

}  // namespace

double StepTimes::Seconds(double num_requests, int32_t drafts) const {
  const auto index = static_cast<size_t>(drafts);
  const auto above = std::ranges::find_if(
      batches, [&](const Batch& batch) { return batch.num_requests >= num_requests; });
  if (above == batches.end()) {
    const Batch& last = batches.back();
    return last.seconds[index] * num_requests / last.num_requests;
  }
  if (above == batches.begin()) return above->seconds[index];
  const Batch& below = *(above - 1);
  const double part =
      (num_requests - below.num_requests) / (above->num_requests - below.num_requests);
  return below.seconds[index] + part * (above->seconds[index] - below.seconds[index]);
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

double DraftLengthPolicy::TokensPerStep(int32_t k) const {
  double tokens = 1;
  double reached = 1;
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    reached *= (accepted_[i] + kGuess * kGuessWeight) / (tried_[i] + kGuessWeight);
    tokens += reached;
  }
  return tokens;
}

double DraftLengthPolicy::SecondsPerToken(int32_t k, int32_t num_requests) const {
  const double decode = times_.Seconds(num_requests, k) / (num_requests * TokensPerStep(k));
  if (times_.prompt_row_seconds.empty() || tokens_ == 0) return decode;
  return decode + prompt_rows_ / tokens_ * times_.prompt_row_seconds[static_cast<size_t>(k)];
}

int32_t DraftLengthPolicy::Best(int32_t num_requests) const {
  int32_t best = 0;
  for (int32_t k = 1; k <= max_drafts_; ++k) {
    if (SecondsPerToken(k, num_requests) < SecondsPerToken(best, num_requests)) best = k;
  }
  return best;
}

int32_t DraftLengthPolicy::Better(int32_t num_requests) const {
  const int32_t best = Best(num_requests);
  const bool gains = SecondsPerToken(best, num_requests) <
                     (1 - kLeastGain) * SecondsPerToken(chosen_, num_requests);
  return gains ? best : chosen_;
}

int32_t DraftLengthPolicy::Choose(int32_t num_requests) {
  if (times_.batches.empty()) return max_drafts_;
  if (num_requests == 0 && chosen_ >= 0) return chosen_;
  num_requests = std::max(num_requests, 1);
  if (chosen_ < 0) {
    last_requests_ = num_requests;
    return chosen_ = Best(num_requests);
  }
  const int32_t better = Better(num_requests);
  const bool crowded =
      better < chosen_ && num_requests > last_requests_ && Better(last_requests_) == chosen_;
  last_requests_ = num_requests;
  lasting_ = better == chosen_ ? 0 : lasting_ + 1;
  if (crowded || lasting_ >= kLastingSteps) {
    chosen_ = better;
    lasting_ = 0;
  }
  return chosen_;
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

void DraftLengthPolicy::ObserveEnd(int64_t prompt_rows, int64_t tokens) {
  const double kept = std::max(0.0, 1 - static_cast<double>(tokens) / kRecentTokens);
  prompt_rows_ = prompt_rows_ * kept + static_cast<double>(prompt_rows);
  tokens_ = tokens_ * kept + static_cast<double>(tokens);
}

}  // namespace outrider
