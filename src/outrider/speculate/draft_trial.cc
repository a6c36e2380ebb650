#include "outrider/speculate/draft_trial.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "outrider/speculate/row_cost.h"

namespace outrider {

namespace {

constexpr int32_t kStepsAfter = 8;

/// Of steps that computed no prompts, these seconds are a little more than their median at most: a
/// few steps are too few for the mean to hide one that was disturbed.
void LimitOutliers(std::vector<DraftStep>& steps, double DraftStep::* seconds) {
  std::vector<double> sorted;
  for (const DraftStep& step : steps) {
    if (step.prompt_rows == 0) sorted.push_back(step.*seconds);
  }
  if (sorted.empty()) return;
  const auto median = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, median);
  for (DraftStep& step : steps) {
    if (step.prompt_rows > 0) continue;
    step.*seconds = std::min(step.*seconds, RowCost::kOutlier * *median);
  }
}

}  // namespace

void DraftTrial::Start(double slowness) {
  steps_after_ = kStepsAfter;
  slowness_before_ = slowness;
}

void DraftTrial::Add(const DraftStep& step) {
  steps_.push_back(step);
  steps_.back().tried = steps_.back().accepted = {};  // the caller's, during this step
}

DraftTrial::Result DraftTrial::Take(double slowness) {
  steps_after_ = 0;
  LimitOutliers(steps_, &DraftStep::seconds);
  LimitOutliers(steps_, &DraftStep::draft_seconds);
  return {.slowness = std::sqrt(slowness_before_ * slowness), .steps = std::exchange(steps_, {})};
}

}  // namespace outrider
