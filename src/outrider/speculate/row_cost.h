// What some work takes as a function of how many rows it has, learned from single measurements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider {

class RowCost {
 public:
  // A measurement that takes this much longer than those before was disturbed, or is a change that
  // will be seen again, and counts as one that takes so much longer. Nothing makes work take less.
  static constexpr double kOutlier = 1.3;

  /// Seconds of `rows` > 0: on the lines through what was measured, but not more than more rows
  /// take; beyond, with the slope that is there; below, in proportion. 0 when nothing was measured.
  double Seconds(double rows) const;

  /// The most rows that were measured well, or at all; 0 when none were.
  double MostRows() const { return most_rows_; }

  /// Of how many measurements the cost of about so many `rows` > 0 is a mean; 0: of none.
  double Weight(double rows) const;

  /// Everything takes so many times as long.
  void Scale(double factor);
  /// All that is known counts like one measurement at most.
  void Doubt();
  /// What is known of about so many rows gives way to the next measurement.
  void Doubt(double rows);

  /// `rows` > 0 took so long. Counts `share` <= 1 of a measurement.
  void Learn(double rows, double seconds, double share = 1);

 private:
  /// The running means of what was measured around a half octave: sizes are often powers of two.
  struct Point {
    double rows = 0;
    double seconds = 0;
    double weight = 0;        // of what was measured; 0: nothing
    bool is_settled = false;  // has been measured well
  };

  /// A point that was measured, with what follows from those after it: Seconds is asked often.
  struct Known {
    double rows = 0;
    double seconds = 0;
    double most = 0;  // the least seconds of this and of all points of more rows
  };

  static size_t IndexOf(double rows);
  void Gather();

  std::array<Point, 48> points_;  // up to 2^24 rows
  std::array<Known, 48> known_;   // of them, by rising rows: the first num_known_
  size_t num_known_ = 0;
  double slope_ = 0;      // seconds per row beyond the last
  double most_rows_ = 0;  // MostRows()
};

}  // namespace outrider
