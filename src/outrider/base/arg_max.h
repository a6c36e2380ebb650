// The largest of a row of numbers, and whether all are numbers; fast enough for vocabularies.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <span>

namespace outrider {

/// The index of the largest value, the lowest one among equals; 0 where none is above -infinity,
/// as NaN is not. `values` is not empty.
inline size_t ArgMax(std::span<const float> values) {
  // Independent lanes, which compilers turn into vector instructions.
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> lanes;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  lanes.fill(kNone);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  float max = lanes[0];
  for (const float lane : lanes) max = lane > max ? lane : max;
  for (; i < values.size(); ++i) max = values[i] > max ? values[i] : max;
  size_t index = 0;
  if (max == kNone) return index;
  while (values[index] != max) ++index;
  return index;
}

/// Whether one of the values is NaN.
inline bool HasNan(std::span<const float> values) {
  bool found = false;  // no early end: so compilers make vector instructions of it
  for (const float value : values) found |= value != value;
  return found;
}

}  // namespace outrider
