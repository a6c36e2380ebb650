// The parts of the option table, one per file; OptionTable() joins them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "outrider/options/option_table.h"
#include "outrider/options/option_value.h"

namespace outrider {

std::vector<OptionRow> EngineOptionRows();
std::vector<OptionRow> ServeOptionRows();
std::vector<OptionRow> GenerateOptionRows();
std::vector<OptionRow> BenchOptionRows();
std::vector<OptionRow> ExplainOptionRows();

/// The text of an option that takes one value.
inline const std::string& Text(const OptionValue& value) { return value.texts.front(); }

inline int32_t Int32(const OptionValue& value, int32_t min,
                     int32_t max = std::numeric_limits<int32_t>::max()) {
  return static_cast<int32_t>(ParseInteger(value.where, Text(value), min, max));
}

inline double Number(const OptionValue& value, double min, double max) {
  return ParseNumber(value.where, Text(value), min, max);
}

/// Reads a temperature of sampling: any finite number that is not negative.
inline double Temperature(const OptionValue& value) {
  return Number(value, 0, std::numeric_limits<float>::max());
}

/// Reads a share of a whole: more than 0, at most 1.
inline double Share(const OptionValue& value) { return ParseShare(value.where, Text(value)); }

inline bool Switch(const OptionValue& value) { return ParseSwitch(value.where, Text(value)); }

}  // namespace outrider
