// What some work takes as a function of how many rows it has, learned from single measurements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider {

class RowCost {
 public:
  /// Seconds of `rows` > 0: on the lines through what was measured, but not more than more rows
  /// take; beyond, with the slope that is there; below, in proportion. 0 when nothing was measured.
  double Seconds(double rows) const;

  /// `rows` > 0 took so long. Counts `share` <= 1 of a measurement.
  void Learn(double rows, double seconds, double share = 1);

 private:
  /// The running means of what was measured between one half octave and the next.
  struct Point {
    double rows = 0;
    double seconds = 0;
    double weight = 0;  // of what was measured; 0: nothing
  };

  /// Of more rows than were measured, `last` being the most.
  double Beyond(const Point& last, double rows) const;

  std::array<Point, 48> points_;  // up to 2^24 rows
};

}  // namespace outrider
