// Reads the fields of one JSON object of a request, strictly: wrong types and values name the
// field, what it holds and what would be right; fields nobody asked for are refused, with the
// nearest name, or ignored with a warning where the server is told to.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider::openai {

/// The largest bound for a field that becomes an int32_t.
inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

class FieldReader {
 public:
  /// `where` prefixes field names in messages: "" for the body, "messages[2]" and the like below
  /// it. Throws RequestError when `value` is not an object. Keeps a reference to it.
  /// `ignore_unknown`: RefuseUnknown and Unsupported only warn.
  FieldReader(const nlohmann::json& value, std::string where, bool ignore_unknown = false);
  /// For an object inside the one that `parent` reads, which treats unknown fields alike.
  FieldReader(const nlohmann::json& value, std::string where, const FieldReader& parent)
      : FieldReader(value, std::move(where), parent.ignore_unknown_) {}

  // Each getter marks the field as known. A field that is absent or null reads as nothing.
  // All throw RequestError on a wrong type or a value out of range (bounds included).
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  /// A finite number of at least 0 that a float can hold.
  std::optional<float> NonNegative(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::vector<int32_t> TokenIds(std::string_view name, int32_t vocab_size);
  /// The raw value of an object, or of an array; null when absent or null.
  const nlohmann::json* Object(std::string_view name);
  const nlohmann::json* Array(std::string_view name);
  /// The raw value; null when absent or null.
  const nlohmann::json* Find(std::string_view name);

  /// A field that other servers have and this one does not, with the values that ask for nothing:
  /// any other value is refused with `why`, or ignored with a warning as unknown fields are.
  void Unsupported(std::string_view name, const std::vector<nlohmann::json>& neutral,
                   const char* why = "not supported yet by this server; leave it out");

  /// Throws for the first field that no getter asked for; or logs a warning for each.
  void RefuseUnknown() const;

  /// "where.name", as messages and `param` spell it.
  std::string PathOf(std::string_view name) const;

  /// Throws RequestError: "path: what".
  [[noreturn]] void Refuse(std::string_view name, const std::string& what) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  bool ignore_unknown_;
  std::vector<std::string_view> known_;
};

/// A short spelling of a JSON value for messages: at most about 60 bytes.
std::string Shorten(const nlohmann::json& value);

/// The elements of an array as token ids; `where` names it in the error.
std::vector<int32_t> ReadTokenIds(const nlohmann::json& values, int32_t vocab_size,
                                  std::string_view where);

}  // namespace outrider::openai
