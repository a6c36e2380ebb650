#include "outrider/speculate/row_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outrider/base/error.h"

namespace outrider {

namespace {

// A mean is over so many measurements, newer ones counting more, and over fewer as others are made
// while it gets none: then what comes next says more than what was.
constexpr double kMostWeight = 10;
constexpr double kLeastWeight = 4;
constexpr double kForgotten = 0.02;  // per measurement elsewhere
// One that takes this much longer than so many was disturbed, or is a change that will be seen
// again. Nothing makes work take less.
constexpr double kOutlier = 1.3;

}  // namespace

double RowCost::Seconds(double rows) const {
  const Point* below = nullptr;
  const Point* above = nullptr;
  double most = std::numeric_limits<double>::infinity();
  for (const Point& point : points_) {
    if (point.weight == 0) continue;
    if (point.rows <= rows) {
      below = &point;
    } else {
      if (above == nullptr) above = &point;
      most = std::min(most, point.seconds);
    }
  }
  if (below == nullptr && above == nullptr) return 0;
  if (below == nullptr) return std::min(above->seconds * rows / above->rows, most);
  if (above == nullptr) return Beyond(*below, rows);
  const double t = (rows - below->rows) / (above->rows - below->rows);
  return std::min(below->seconds + t * (above->seconds - below->seconds), most);
}

double RowCost::Beyond(const Point& last, double rows) const {
  const Point* half = nullptr;  // an octave away, so that the slope is more than noise
  for (const Point& point : points_) {
    if (point.weight > 0 && point.rows <= last.rows / 2) half = &point;
  }
  const double most = last.seconds / last.rows;  // no work costs more than in proportion
  if (half == nullptr) return most * rows;
  const double slope = (last.seconds - half->seconds) / (last.rows - half->rows);
  return last.seconds + std::clamp(slope, 0.0, most) * (rows - last.rows);
}

void RowCost::Learn(double rows, double seconds, double share) {
  OUTRIDER_CHECK(rows > 0);
  const auto index = static_cast<size_t>(2 * std::log2(std::max(rows, 1.0)));
  Point& point = points_[std::min(index, points_.size() - 1)];
  // What is known on both sides counts like one measurement.
  const bool before =
      std::any_of(points_.data(), &point, [](const Point& p) { return p.weight > 0; });
  const bool after = std::any_of(&point + 1, points_.data() + points_.size(),
                                 [](const Point& p) { return p.weight > 0; });
  if (point.weight == 0 && before && after) {
    point = {.rows = rows, .seconds = Seconds(rows), .weight = 1};
  }
  for (Point& other : points_) {
    if (other.weight <= kLeastWeight) continue;
    other.weight += share * kForgotten * (kLeastWeight - other.weight);
  }
  if (point.weight >= kLeastWeight) seconds = std::min(seconds, point.seconds * kOutlier);
  point.weight = std::min(point.weight + share, kMostWeight);
  const double weight = share / point.weight;
  point.rows += weight * (rows - point.rows);
  point.seconds += weight * (seconds - point.seconds);
}

}  // namespace outrider
