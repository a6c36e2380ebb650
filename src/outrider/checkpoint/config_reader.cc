#include "outrider/checkpoint/config_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/bounded_json.h"
#include "outrider/base/error.h"

namespace outrider {

using nlohmann::json;

namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 26;  // a tokenizer has a million

/// How many letters have to be added, left out, exchanged or swapped with the next to make b of a.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

/// "line 3, column 7" of the byte-th byte (from 1) of text.
std::string Place(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

json ParseJson(std::string_view text, std::string_view where) {
  try {
    return ParseBoundedJson(text, {.max_depth = kMaxDepth, .max_values = kMaxValues});
  } catch (const JsonFault& fault) {
    if (fault.kind() != JsonFault::Kind::kSyntax) {
      throw InvalidArgument("{}: {}", where, fault.what());
    }
    throw InvalidArgument("{}: not valid JSON at {}", where, Place(text, fault.byte()));
  }
}

std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > kLongest / 2) return "a long list";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

ConfigReader::ConfigReader(const json& object, std::string owner,
                           std::vector<std::string>& problems)
    : object_(object), owner_(std::move(owner)), problems_(problems) {
  OUTRIDER_CHECK(object.is_object());
}

const json* ConfigReader::Find(std::string_view key) {
  if (!Contains(key)) return nullptr;
  const json& value = *object_.find(key);
  return value.is_null() ? nullptr : &value;
}

bool ConfigReader::Contains(std::string_view key) {
  read_.emplace(key);
  return object_.contains(key);
}

std::vector<std::string> ConfigReader::UnreadKeys() const {
  std::vector<std::string> unread;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) unread.push_back(key);
  }
  return unread;
}

std::optional<std::string> ConfigReader::NearestMissingKey(std::string_view unread) const {
  constexpr size_t kLongWord = 8;
  constexpr size_t kLongestKey = 100;  // of those that are read
  if (unread.size() > kLongestKey) return std::nullopt;
  std::optional<std::string> nearest;
  size_t least = unread.size() >= kLongWord ? 3 : 2;
  for (const std::string& key : read_) {
    if (object_.contains(key)) continue;
    const size_t distance = EditDistance(unread, key);
    if (distance >= least) continue;
    least = distance;
    nearest = key;
  }
  return nearest;
}

void ConfigReader::Refuse(std::string_view key, std::string_view requirement) {
  const auto it = object_.find(key);
  problems_.push_back(fmt::format("\"{}\"{}{} is {}: {}", key, owner_.empty() ? "" : " of ", owner_,
                                  it == object_.end() ? "missing" : Shown(*it), requirement));
}

const json* ConfigReader::Need(std::string_view key, bool has_fallback, std::string_view kind) {
  const json* value = Find(key);
  if (value == nullptr && !has_fallback) Refuse(key, kind);
  return value;
}

int64_t ConfigReader::Integer(std::string_view key, int64_t min, int64_t max,
                              std::optional<int64_t> fallback) {
  const std::string kind = fmt::format("an integer from {} to {} is needed", min, max);
  const json* value = Need(key, fallback.has_value(), kind);
  if (value == nullptr) return fallback.value_or(max);
  // Integers above INT64_MAX are unsigned in nlohmann-json, and would wrap around.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (fits) {
    const auto number = value->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  Refuse(key, kind);
  return max;
}

double ConfigReader::Number(std::string_view key, double min, double max,
                            std::optional<double> fallback) {
  const std::string kind = fmt::format("a number from {} to {} is needed", min, max);
  const json* value = Need(key, fallback.has_value(), kind);
  if (value == nullptr) return fallback.value_or(min);
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  Refuse(key, kind);
  return min;
}

bool ConfigReader::Boolean(std::string_view key, std::optional<bool> fallback) {
  constexpr std::string_view kKind = "true or false is needed";
  const json* value = Need(key, fallback.has_value(), kKind);
  if (value == nullptr) return fallback.value_or(false);
  if (value->is_boolean()) return value->get<bool>();
  Refuse(key, kKind);
  return fallback.value_or(false);
}

std::string ConfigReader::String(std::string_view key) {
  const json* value = Find(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  Refuse(key, "a string is needed");
  return "";
}

std::string ConfigReader::Choice(std::string_view key,
                                 std::initializer_list<std::string_view> allowed,
                                 std::string_view requirement, std::string_view fallback) {
  const json* value = Find(key);
  if (value == nullptr && !fallback.empty()) return std::string(fallback);
  if (value != nullptr && value->is_string()) {
    std::string text = value->get<std::string>();
    if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  }
  Refuse(key, requirement);
  return "";
}

}  // namespace outrider
