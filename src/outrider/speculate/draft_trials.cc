#include "outrider/speculate/draft_trials.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace outrider {

namespace {

// Of a block in the midst of requests, and of what comes before it: of one request, and at least.
constexpr double kLength = 16;
constexpr double kSettling = 12;
constexpr double kShortest = 4;
// A mean is over so many trials, newer ones counting more.
constexpr int32_t kMostTrials = 8;
// No step takes so many times as long as most of its block: other programs can take the processor
// away for longer than a step.
constexpr double kDisturbed = 2;

/// The mean, what is far above the median being limited; 0 of nothing.
double UndisturbedMean(std::vector<double>& seconds) {
  if (seconds.empty()) return 0;
  const auto median = seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, median);
  const double most = kDisturbed * *median;
  return std::accumulate(seconds.begin(), seconds.end(), 0.0,
                         [most](double sum, double s) { return sum + std::min(s, most); }) /
         static_cast<double>(seconds.size());
}

}  // namespace

DraftTrials::DraftTrials(int32_t max_drafts) : max_drafts_(max_drafts) {}

size_t DraftTrials::IndexOf(double batch_size) {
  return static_cast<size_t>(std::lround(std::log2(std::max(batch_size, 1.0))));
}

int32_t DraftTrials::BlockLength(double batch_size) {
  return static_cast<int32_t>(std::lround(std::max(kLength / batch_size, kShortest)));
}

int32_t DraftTrials::SettlingSteps(double batch_size) {
  return static_cast<int32_t>(std::lround(std::max(kSettling / batch_size, kShortest)));
}

const DraftTrials::Costs* DraftTrials::Find(double batch_size) const {
  const size_t index = IndexOf(batch_size);
  return index < costs_.size() && !costs_[index].trials.empty() ? &costs_[index] : nullptr;
}

/// A trial is not much longer than what it is compared with.
bool DraftTrials::IsBlockOver(bool begins, double batch_size) const {
  if (!has_block_) return true;
  const auto steps = static_cast<int32_t>(block_.verify.size());
  if (begins && steps >= kLeastBlock) return true;
  int32_t most = block_.begins ? kMostBlock : BlockLength(batch_size);
  if (stage_ == Stage::kTrial) most = std::min(most, 2 * before_.steps);
  return steps >= most;
}

void DraftTrials::EndBlock(double batch_size) {
  if (!std::exchange(has_block_, false)) return;
  const Ended ended = {.seconds = UndisturbedMean(block_.verify) + UndisturbedMean(block_.draft),
                       .steps = static_cast<int32_t>(block_.verify.size())};
  if (stage_ == Stage::kTrial) {
    trial_ = ended;
    stage_ = Stage::kAfter;
    return;
  }
  const bool is_after = std::exchange(stage_, Stage::kNone) == Stage::kAfter;
  if (is_after && before_.seconds > 0 && trial_.seconds > 0 && ended.seconds > 0) {
    const size_t index = IndexOf(batch_size);
    if (costs_.size() <= index) costs_.resize(index + 1);
    Learn(costs_[index], std::log(trial_.seconds / std::sqrt(before_.seconds * ended.seconds)));
  }
  before_ = ended;
}

/// The first trial beside a number ties the two together.
void DraftTrials::Learn(Costs& costs, double log_ratio) {
  const auto size = static_cast<size_t>(max_drafts_) + 1;
  costs.log_seconds.resize(size);
  costs.surprise.resize(size);
  costs.trials.resize(size);
  const auto tried = static_cast<size_t>(tried_);
  const auto beside = static_cast<size_t>(beside_);
  if (costs.trials[beside] == 0) {
    costs.log_seconds[beside] = costs.log_seconds[tried] - log_ratio;
    costs.trials[beside] = 1;
    if (costs.trials[tried] > 0) return;
  }
  int32_t& trials = costs.trials[tried];
  trials = std::min(trials + 1, kMostTrials);
  const double measured = costs.log_seconds[beside] + log_ratio;
  costs.log_seconds[tried] += (measured - costs.log_seconds[tried]) / trials;
  costs.surprise[tried] = measured - costs.log_seconds[tried];
}

void DraftTrials::StartBlock(int32_t drafts, bool is_trial, bool begins, double batch_size) {
  const bool changes = drafts != block_.drafts;
  if (is_trial) {
    stage_ = Stage::kTrial;
    tried_ = drafts;
    beside_ = block_.drafts;
  }
  has_block_ = true;
  block_ = {};
  block_.drafts = drafts;
  block_.begins = begins;
  block_.not_counted = changes && !begins ? SettlingSteps(batch_size) : 1;
}

void DraftTrials::DoNotCount(int32_t steps) {
  block_.not_counted = std::max(block_.not_counted, steps);
}

void DraftTrials::Abandon() {
  stage_ = Stage::kNone;
  has_block_ = false;
  before_ = {};
}

/// The first step of a block still verifies what the block before drafted.
void DraftTrials::Observe(const DraftStep& step) {
  if (!has_block_) return;
  if (block_.not_counted > 0) {
    --block_.not_counted;
  } else if (step.prompt_rows == 0 && step.verify_rows > 0) {
    block_.verify.push_back(step.seconds);
    block_.draft.push_back(step.draft_seconds);
  }
}

int32_t DraftTrials::NumTrials(int32_t drafts, double batch_size) const {
  const Costs* const costs = Find(batch_size);
  return costs != nullptr ? costs->trials[static_cast<size_t>(drafts)] : 0;
}

double DraftTrials::Surprise(int32_t drafts, double batch_size) const {
  const Costs* const costs = Find(batch_size);
  return costs != nullptr ? std::exp(costs->surprise[static_cast<size_t>(drafts)]) : 1;
}

bool DraftTrials::CanTry(int32_t drafts, int32_t best, double batch_size) const {
  if (before_.seconds == 0) return false;
  if (Find(batch_size) == nullptr) return true;
  return NumTrials(drafts, batch_size) > 0 || NumTrials(best, batch_size) > 0;
}

double DraftTrials::StepRatio(int32_t drafts, int32_t other, double batch_size) const {
  const std::vector<double>& log_seconds = Find(batch_size)->log_seconds;
  return std::exp(log_seconds[static_cast<size_t>(drafts)] -
                  log_seconds[static_cast<size_t>(other)]);
}

}  // namespace outrider
