#include "outrider/speculate/row_cost.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/error.h"

namespace outrider {

namespace {

// A mean is over so many measurements, newer ones counting more, and over fewer as others are made
// while it gets none: then what comes next says more than what was.
constexpr double kMostWeight = 10;
constexpr double kLeastWeight = 4;
constexpr double kForgotten = 0.02;  // per measurement elsewhere
// Shares add up to so many before they are believed, unless there is nothing else: what a step says
// of a small part can be wrong by a factor, and bounds what fewer rows take.
constexpr double kLeastBelieved = 0.1;
// The least share that says whether what was measured before was slow.
constexpr double kTellingShare = 0.25;

}  // namespace

double RowCost::Seconds(double rows) const {
  if (num_known_ == 0) return 0;
  size_t above = 0;
  while (above < num_known_ && known_[above].rows <= rows) ++above;
  if (above == num_known_) {
    const Known& last = known_[num_known_ - 1];
    return last.seconds + slope_ * (rows - last.rows);
  }
  const Known& b = known_[above];
  if (above == 0) return std::min(b.seconds * rows / b.rows, b.most);
  const Known& a = known_[above - 1];
  const double t = (rows - a.rows) / (b.rows - a.rows);
  return std::min(a.seconds + t * (b.seconds - a.seconds), b.most);
}

size_t RowCost::IndexOf(double rows) {
  constexpr size_t kLast = std::tuple_size_v<decltype(points_)> - 1;
  return std::min(static_cast<size_t>(0.5 + 2 * std::log2(std::max(rows, 1.0))), kLast);
}

double RowCost::Weight(double rows) const { return points_[IndexOf(rows)].weight; }

void RowCost::Gather() {
  num_known_ = 0;
  double heaviest = 0;
  for (const Point& point : points_) heaviest = std::max(heaviest, point.weight);
  for (const Point& point : points_) {
    if (point.weight == 0 || point.weight < std::min(heaviest, kLeastBelieved)) continue;
    known_[num_known_++] = {point.rows, point.seconds, point.seconds};
    if (point.weight >= std::min(heaviest, kTellingShare)) most_rows_ = point.rows;
  }
  for (size_t i = num_known_ - 1; i-- > 0;) {
    known_[i].most = std::min(known_[i].most, known_[i + 1].most);
  }
  const Known& last = known_[num_known_ - 1];
  slope_ = last.seconds / last.rows;  // no work costs more than in proportion
  for (size_t i = num_known_; i-- > 0;) {
    // An octave away, so that the slope is more than noise.
    if (known_[i].rows > last.rows / 2) continue;
    const double slope = (last.seconds - known_[i].seconds) / (last.rows - known_[i].rows);
    slope_ = std::clamp(slope, 0.0, slope_);
    break;
  }
}

void RowCost::Scale(double factor) {
  if (num_known_ == 0) return;
  for (Point& point : points_) point.seconds *= factor;
  Gather();
}

void RowCost::Doubt() {
  for (Point& point : points_) point.weight = std::min(point.weight, 1.0);
}

void RowCost::Doubt(double rows) {
  double& weight = points_[IndexOf(rows)].weight;
  weight = std::min(weight, kLeastBelieved);
}

void RowCost::Learn(double rows, double seconds, double share) {
  OUTRIDER_CHECK(rows > 0);
  Point& point = points_[IndexOf(rows)];
  for (Point& other : points_) {
    if (other.weight <= kLeastWeight) continue;
    other.weight += share * kForgotten * (kLeastWeight - other.weight);
  }
  if (point.weight >= kLeastWeight) seconds = std::min(seconds, point.seconds * kOutlier);
  // The first ones can be slow, as memory is touched the first time: then they do not count.
  const bool tells = share >= kTellingShare && !point.is_settled;
  if (tells && seconds * kOutlier < point.seconds) point.weight = 0;
  point.weight = std::min(point.weight + share, kMostWeight);
  point.is_settled |= point.weight >= kLeastWeight;
  const double weight = share / point.weight;
  point.rows += weight * (rows - point.rows);
  point.seconds += weight * (seconds - point.seconds);
  Gather();
}

}  // namespace outrider
