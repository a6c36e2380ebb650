#include "outrider/openai/field_reader.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "outrider/openai/api_error.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

// Insertions, deletions, replacements (Levenshtein).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

const char* TypeName(const json& value) {
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return "null";
}

// The bytes of `text` up to `limit`, not cutting a UTF-8 character.
std::string Cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && (static_cast<uint8_t>(text[limit]) & 0xC0) == 0x80) --limit;
  return std::string(text.substr(0, limit)) + "...";
}

}  // namespace

std::string Shorten(const json& value) {
  // Containers can be huge: their size says enough.
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  if (value.is_string()) {
    return json(Cut(value.get_ref<const std::string&>(), 48))
        .dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return value.dump();
}

FieldReader::FieldReader(const json& value, std::string where, bool ignore_unknown)
    : object_(value), where_(std::move(where)), ignore_unknown_(ignore_unknown) {
  if (!value.is_object()) {
    throw RequestError(ErrorCode::kInvalidArgument, where_,
                       fmt::format("{} must be a JSON object, not {}",
                                   where_.empty() ? "the request body" : where_, TypeName(value)));
  }
}

std::string FieldReader::PathOf(std::string_view name) const {
  return where_.empty() ? std::string(name) : fmt::format("{}.{}", where_, name);
}

void FieldReader::Refuse(std::string_view name, const std::string& what) const {
  throw RequestError(ErrorCode::kInvalidArgument, PathOf(name),
                     fmt::format("{}: {}", PathOf(name), what));
}

const json* FieldReader::Find(std::string_view name) {
  known_.push_back(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Refuse(name, fmt::format("must be true or false, not {}", Shorten(*value)));
  }
  return value->get<bool>();
}

std::optional<int64_t> FieldReader::Integer(std::string_view name, int64_t min, int64_t max) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  // 5.0 is an integer to JSON's users, if not to its parser.
  const bool whole = value->is_number_float() && std::abs(value->get<double>()) < 0x1p53 &&
                     std::trunc(value->get<double>()) == value->get<double>();
  if (!value->is_number_integer() && !whole) {
    Refuse(name, fmt::format("must be an integer, not {}", Shorten(*value)));
  }
  const bool huge = value->is_number_unsigned() &&
                    value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const int64_t number = huge ? 0 : value->get<int64_t>();
  if (huge || number < min || number > max) {
    Refuse(name, max == std::numeric_limits<int64_t>::max()
                     ? fmt::format("{} is out of range: must be at least {}", Shorten(*value), min)
                     : fmt::format("{} is out of range: must be from {} to {}", Shorten(*value),
                                   min, max));
  }
  return number;
}

std::optional<double> FieldReader::Number(std::string_view name, double min, double max) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Refuse(name, fmt::format("must be a number, not {}", Shorten(*value)));
  }
  const auto number = value->get<double>();
  if (number < min || number > max) {
    Refuse(name,
           fmt::format("{} is out of range: must be from {} to {}", Shorten(*value), min, max));
  }
  return number;
}

std::optional<float> FieldReader::NonNegative(std::string_view name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Refuse(name, fmt::format("must be a number, not {}", Shorten(*value)));
  }
  const auto number = value->get<double>();
  if (number < 0 || number > std::numeric_limits<float>::max()) {
    Refuse(name,
           fmt::format("{} is out of range: must be a finite number, at least 0", Shorten(*value)));
  }
  return static_cast<float>(number);
}

std::optional<std::string> FieldReader::String(std::string_view name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Refuse(name, fmt::format("must be a string, not {}", Shorten(*value)));
  }
  return value->get<std::string>();
}

std::vector<int32_t> ReadTokenIds(const json& values, int32_t vocab_size, std::string_view where) {
  std::vector<int32_t> ids;
  ids.reserve(values.size());
  for (const json& value : values) {
    const bool in_range =
        value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    if (!in_range) {
      const std::string path = fmt::format("{}[{}]", where, ids.size());
      throw RequestError(ErrorCode::kInvalidArgument, path,
                         fmt::format("{}: {} is not a token id: must be an integer from 0 to {}",
                                     path, Shorten(value), vocab_size - 1));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

std::vector<int32_t> FieldReader::TokenIds(std::string_view name, int32_t vocab_size) {
  const json* value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    Refuse(name, fmt::format("must be an array of token ids, not {}", Shorten(*value)));
  }
  return ReadTokenIds(*value, vocab_size, PathOf(name));
}

const json* FieldReader::Object(std::string_view name) {
  const json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    Refuse(name, fmt::format("must be an object, not {}", Shorten(*value)));
  }
  return value;
}

const json* FieldReader::Array(std::string_view name) {
  const json* value = Find(name);
  if (value != nullptr && !value->is_array()) {
    Refuse(name, fmt::format("must be an array, not {}", Shorten(*value)));
  }
  return value;
}

void FieldReader::Unsupported(std::string_view name, const std::vector<json>& neutral,
                              const char* why) {
  const json* value = Find(name);
  if (value == nullptr) return;
  if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) return;
  if (!ignore_unknown_) Refuse(name, why);
  SPDLOG_WARN("{}: field of a request that is not supported, ignored", Shorten(json(PathOf(name))));
}

void FieldReader::RefuseUnknown() const {
  constexpr size_t kMaxWarnings = 16;  // of one object
  size_t num_ignored = 0;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string shown = Cut(name, 64);
    if (ignore_unknown_) {
      if (++num_ignored > kMaxWarnings) continue;
      SPDLOG_WARN("{}: unknown field of a request, ignored", Shorten(json(PathOf(shown))));
      continue;
    }
    std::string_view nearest;
    size_t best = std::min<size_t>(3, shown.size() / 2) + 1;
    for (const std::string_view known : known_) {
      const size_t distance = EditDistance(shown, known);
      if (distance < best) {
        best = distance;
        nearest = known;
      }
    }
    throw RequestError(ErrorCode::kInvalidArgument, PathOf(shown),
                       nearest.empty() ? fmt::format("{}: unknown field", PathOf(shown))
                                       : fmt::format("{}: unknown field; did you mean \"{}\"?",
                                                     PathOf(shown), nearest));
  }
  if (num_ignored > kMaxWarnings) {
    SPDLOG_WARN("{} more unknown fields of the same object, ignored", num_ignored - kMaxWarnings);
  }
}

}  // namespace outrider::openai
