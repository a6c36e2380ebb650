#include "outrider/openai/raw_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace outrider::openai {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// Walks over valid JSON text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) { SkipSpace(); }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void Skip(char c) {
    if (Peek() == c) ++at_;
    SkipSpace();
  }

  /// The value here, and goes past it and the space behind.
  std::string_view Value() {
    const size_t begin = at_;
    int depth = 0;
    do {
      const char c = Peek();
      if (c == '"') {
        SkipString();
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        --depth;
        ++at_;
      } else if (c == ',' || c == ':' || kSpace.find(c) != std::string_view::npos) {
        ++at_;
      } else {  // a number or a word
        at_ = std::min(text_.find_first_of(",:]} \t\r\n", at_), text_.size());
      }
    } while (depth > 0 && at_ < text_.size());
    const std::string_view value = text_.substr(begin, at_ - begin);
    SkipSpace();
    return value;
  }

 private:
  void SkipSpace() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }

  void SkipString() {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string_view Member(std::string_view object, std::string_view name) {
  Scanner scanner(object);
  std::string_view found;
  scanner.Skip('{');
  while (scanner.Peek() == '"') {
    const std::string_view key = scanner.Value();
    scanner.Skip(':');
    const std::string_view value = scanner.Value();
    // Names may be spelled with escapes.
    if (nlohmann::json::parse(key).get_ref<const std::string&>() == name) found = value;
    scanner.Skip(',');
  }
  return found;
}

}  // namespace

std::string_view RawJson(std::string_view text, const std::vector<std::string_view>& path) {
  std::string_view value = Scanner(text).Value();
  for (const std::string_view step : path) {
    if (value.starts_with('{')) {
      value = Member(value, step);
    } else {
      return {};
    }
  }
  return value;
}

std::vector<std::string_view> RawElements(std::string_view array) {
  std::vector<std::string_view> elements;
  Scanner scanner(array);
  if (scanner.Peek() != '[') return elements;
  scanner.Skip('[');
  while (scanner.Peek() != ']' && scanner.Peek() != '\0') {
    elements.push_back(scanner.Value());
    scanner.Skip(',');
  }
  return elements;
}

}  // namespace outrider::openai
