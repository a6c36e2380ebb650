#include "outrider/options/option_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

std::string_view Trim(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

/// The whole of `text` as a T.
template <typename T>
bool ParseAll(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

int64_t ParseInteger(std::string_view where, std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  if (!ParseAll(Trim(text), value)) {
    throw InvalidArgument("{}: '{}' is not a whole number", where, text);
  }
  if (value < min || value > max) {
    if (value < min && max >= std::numeric_limits<int32_t>::max()) {
      throw InvalidArgument("{}: {} is too small; it must be at least {}", where, value, min);
    }
    throw InvalidArgument("{}: {} is out of range; it must be from {} to {}", where, value, min,
                          max);
  }
  return value;
}

uint64_t ParseUnsigned(std::string_view where, std::string_view text) {
  uint64_t value = 0;
  if (!ParseAll(Trim(text), value)) {
    throw InvalidArgument("{}: '{}' is not a whole number from 0 to 2^64 - 1", where, text);
  }
  return value;
}

double ParseNumber(std::string_view where, std::string_view text, double min, double max) {
  double value = 0;
  if (!ParseAll(Trim(text), value) || !std::isfinite(value)) {
    throw InvalidArgument("{}: '{}' is not a number", where, text);
  }
  if (value < min && max >= std::numeric_limits<float>::max()) {
    throw InvalidArgument("{}: {} is too small; it must be at least {}", where, text, min);
  }
  if (value < min || value > max) {
    throw InvalidArgument("{}: {} is out of range; it must be from {} to {}", where, text, min,
                          max);
  }
  return value;
}

double ParseShare(std::string_view where, std::string_view text) {
  constexpr double kAny = std::numeric_limits<double>::max();
  const double value = ParseNumber(where, text, -kAny, kAny);
  if (value > 0 && value <= 1) return value;
  throw InvalidArgument("{}: {} is out of range; it must be above 0, at most 1", where, text);
}

int64_t ParseSize(std::string_view where, std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{{"", 1.0},
                                                                                  {"b", 1.0},
                                                                                  {"k", 0x1p10},
                                                                                  {"kib", 0x1p10},
                                                                                  {"kb", 1e3},
                                                                                  {"m", 0x1p20},
                                                                                  {"mib", 0x1p20},
                                                                                  {"mb", 1e6},
                                                                                  {"g", 0x1p30},
                                                                                  {"gib", 0x1p30},
                                                                                  {"gb", 1e9},
                                                                                  {"t", 0x1p40},
                                                                                  {"tib", 0x1p40},
                                                                                  {"tb", 1e12}}};
  const std::string lower = LowerCase(Trim(text));
  double number = 0;
  const auto [end, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  const std::string_view unit =
      Trim(std::string_view(end, static_cast<size_t>(lower.data() + lower.size() - end)));
  const auto* found = std::find_if(kUnits.begin(), kUnits.end(),
                                   [unit](const auto& known) { return known.first == unit; });
  if (error != std::errc() || found == kUnits.end()) {
    throw InvalidArgument("{}: '{}' is not a size in bytes; write for example 512M, 4GiB or 1.5G",
                          where, text);
  }
  const double bytes = number * found->second;
  if (!(bytes >= 1) || !(bytes < 0x1p62)) {
    throw InvalidArgument("{}: '{}' is out of range; it must be from 1 byte to 4 EiB", where, text);
  }
  return static_cast<int64_t>(bytes);
}

bool ParseSwitch(std::string_view where, std::string_view text) {
  const std::string lower = LowerCase(Trim(text));
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  throw InvalidArgument("{}: '{}' is neither true nor false", where, text);
}

size_t ParseChoice(std::string_view where, std::string_view text,
                   std::span<const std::string> choices) {
  const auto found = std::find(choices.begin(), choices.end(), Trim(text));
  if (found == choices.end()) {
    throw InvalidArgument("{}: '{}' is unknown; choose from {}{}", where, text,
                          fmt::join(choices, ", "), Suggestion(text, choices));
  }
  return static_cast<size_t>(found - choices.begin());
}

std::vector<int32_t> ParseIntegerList(std::string_view where, std::string_view text, int32_t min,
                                      int32_t max) {
  std::vector<int32_t> values;
  for (const std::string& part : SplitCommas(text)) {
    values.push_back(static_cast<int32_t>(ParseInteger(where, part, min, max)));
  }
  if (values.empty()) {
    throw InvalidArgument("{}: '{}' holds no number; write for example 1,2,3", where, text);
  }
  return values;
}

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = Trim(text.substr(0, comma));
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return parts;
}

std::string Suggestion(std::string_view name, std::span<const std::string> candidates) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

}  // namespace outrider
