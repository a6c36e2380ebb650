// Typed, range-checked access to a JSON object's keys. It notes every problem it meets, so that a
// broken file is reported whole.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Parses JSON whose nesting is at most 64 deep. Throws Error, its message opening with `where`.
nlohmann::json ParseJson(std::string_view text, std::string_view where);

/// A value as it was written, on one line, cut after about 60 characters.
std::string Shown(const nlohmann::json& value);

/// Reads keys of one object. A key that is missing (or null, where a fallback is given) yields the
/// fallback; a missing key without one, a wrong type or a value out of range adds a problem and
/// yields a value in range (of integers the largest), so that reading can go on.
class ConfigReader {
 public:
  /// `owner` follows key names in messages, e.g. "rope_scaling"; may be empty. Both references must
  /// outlive the reader.
  ConfigReader(const nlohmann::json& object, std::string owner, std::vector<std::string>& problems);

  /// The key's value; nullptr when it is missing or null.
  const nlohmann::json* Find(std::string_view key);
  /// True when the key is there, even as null.
  bool Contains(std::string_view key);

  int64_t Integer(std::string_view key, int64_t min, int64_t max,
                  std::optional<int64_t> fallback = {});
  /// A finite number in [min, max].
  double Number(std::string_view key, double min, double max, std::optional<double> fallback = {});
  bool Boolean(std::string_view key, std::optional<bool> fallback = {});
  std::string String(std::string_view key);
  /// One of the strings `allowed`; `requirement` says so in the problem. Returns "" when it is
  /// none.
  std::string Choice(std::string_view key, std::initializer_list<std::string_view> allowed,
                     std::string_view requirement, std::string_view fallback = {});

  /// Adds the problem `"KEY" of OWNER is VALUE: REQUIREMENT`.
  void Refuse(std::string_view key, std::string_view requirement);

  /// The object's keys that no function above was asked for, sorted.
  std::vector<std::string> UnreadKeys() const;

  /// The key that `unread` may be a misspelling of: one that a function above was asked for, that
  /// the object does not have, and that differs in one letter, or two of a long word.
  std::optional<std::string> NearestMissingKey(std::string_view unread) const;

 private:
  const nlohmann::json* Need(std::string_view key, bool has_fallback, std::string_view kind);

  const nlohmann::json& object_;
  std::set<std::string, std::less<>> read_;
  std::string owner_;
  std::vector<std::string>& problems_;
};

}  // namespace outrider
