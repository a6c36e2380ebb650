// JSON as Python's json module reads and writes it. Prompts of models whose prompt encoder is
// Python code hold schemas and arguments in that spelling, so it decides about tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

/// JSON text that was checked, in parts. Members keep their order; of those with one name the last
/// counts, in the place of the first.
class JsonText {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  /// Nothing if `text` is not valid JSON, or nested more than 200 deep. `text` must outlive this.
  static std::optional<JsonText> Parse(std::string_view text);

  Kind kind() const;
  std::string_view text() const { return text_; }

  /// The characters of a string.
  std::string String() const;
  /// Whether a kBool is true.
  bool Bool() const { return text_ == "true"; }
  std::vector<JsonText> Elements() const;
  std::vector<std::pair<std::string, JsonText>> Members() const;
  /// The member `name` of an object; nothing if it has none, or null.
  std::optional<JsonText> Find(std::string_view name) const;

  /// What json.dumps(json.loads(text), ensure_ascii=False) gives.
  std::string DumpLikePython() const;

 private:
  explicit JsonText(std::string_view text) : text_(text) {}

  std::string_view text_;  // without white space around it
};

}  // namespace outrider
