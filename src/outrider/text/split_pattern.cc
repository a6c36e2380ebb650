#include "outrider/text/split_pattern.h"

#include <cctype>

#include "outrider/base/error.h"

namespace outrider {
namespace {

// Unicode's White_Space and word characters, as items of a character class. PCRE2's own \s also
// takes U+180E and its \w leaves out marks and connector punctuation.
constexpr std::string_view kSpaceItems = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordItems = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string Run() {
    while (!AtEnd()) {
      switch (Peek()) {
        case '\\':
          out_ += Escape(/*in_class=*/false);
          break;
        case '[':
          out_ += Class();
          break;
        case '(':
          Group();
          break;
        case '{':
          Interval();
          break;
        default:
          out_ += Next();
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void Refuse(std::string_view construct) const {
    throw InvalidArgument("{}: regular expression at byte {}: {} is not supported", where_, at_,
                          construct);
  }

  bool AtEnd() const { return at_ >= pattern_.size(); }
  char Peek() const { return pattern_[at_]; }
  char Next() { return pattern_[at_++]; }
  bool LooksAt(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  char Need(std::string_view construct) {
    if (AtEnd()) Refuse(fmt::format("unfinished {}", construct));
    return Next();
  }

  // One escape sequence, translated. Within a class the result is a list of class items.
  std::string Escape(bool in_class) {
    Next();
    const char letter = Need("escape");
    const auto as_class = [in_class](std::string_view items, bool negated) {
      return in_class ? std::string(items) : fmt::format("[{}{}]", negated ? "^" : "", items);
    };
    switch (letter) {
      case 's':
        return as_class(kSpaceItems, false);
      case 'w':
        return as_class(kWordItems, false);
      case 'S':
      case 'W':
        if (in_class) Refuse(fmt::format("\\{} inside a character class", letter));
        return as_class(letter == 'S' ? kSpaceItems : kWordItems, true);
      case 'v':
        return "\\x0B";
      case 'p':
      case 'P':
        return Property(letter);
      case 'u':
        return fmt::format("\\x{{{}}}", Hexadecimal(4));
      case 'x':
        return HexadecimalEscape();
      case 'A':
      case 'z':
        if (in_class) Refuse(fmt::format("\\{} inside a character class", letter));
        return fmt::format("\\{}", letter);
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return fmt::format("\\{}", letter);
      default:
        if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
          Refuse(fmt::format("\\{}", letter));
        }
        if (static_cast<unsigned char>(letter) >= 0x80) return {letter};
        return fmt::format("\\{}", letter);
    }
  }

  std::string Property(char letter) {
    if (Need("\\p") != '{') Refuse("\\p without braces");
    std::string name;
    for (char c = Need("\\p{"); c != '}'; c = Need("\\p{")) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '^') {
        Refuse("this character in a property name");
      }
      name += c;
    }
    return fmt::format("\\{}{{{}}}", letter, name);
  }

  std::string Hexadecimal(int digits) {
    std::string number;
    for (int i = 0; i < digits; ++i) {
      const char digit = Need("hexadecimal number");
      if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) {
        Refuse("malformed hexadecimal number");
      }
      number += digit;
    }
    return number;
  }

  std::string HexadecimalEscape() {
    if (AtEnd() || Peek() != '{') return fmt::format("\\x{{{}}}", Hexadecimal(2));
    Next();
    std::string number;
    for (char c = Need("\\x{"); c != '}'; c = Need("\\x{")) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) Refuse("malformed hexadecimal number");
      number += c;
    }
    return fmt::format("\\x{{{}}}", number);
  }

  // A character class. `[A&&[B]]` becomes `(?:(?=[B])[A])`, `[A&&[^B]]` becomes `(?:(?![B])[A])`.
  std::string Class() {
    Next();
    const bool negated = LooksAt("^");
    if (negated) Next();
    if (LooksAt("]")) Refuse("an empty character class");
    const std::string items = ClassItems();
    std::string whole = fmt::format("[{}{}]", negated ? "^" : "", items);
    if (!LooksAt("&&")) {
      Next();  // the closing bracket
      return whole;
    }
    std::string conditions;
    while (LooksAt("&&")) {
      at_ += 2;
      if (negated || !LooksAt("[")) Refuse("an intersection other than [A&&[B]] and [A&&[^B]]");
      Next();
      const bool without = LooksAt("^");
      if (without) Next();
      if (LooksAt("]")) Refuse("an empty character class");
      const std::string other = ClassItems();
      if (Need("character class") != ']') Refuse("an intersection within an intersection");
      conditions += fmt::format("(?{}[{}])", without ? '!' : '=', other);
    }
    if (Need("character class") != ']') Refuse("anything after [A&&[B]");
    return fmt::format("(?:{}{})", conditions, whole);
  }

  // The items of a class up to its closing bracket or an `&&`, which stays unread.
  std::string ClassItems() {
    std::string items;
    while (true) {
      if (AtEnd()) Refuse("unfinished character class");
      if (LooksAt("]") || LooksAt("&&")) break;
      if (LooksAt("[")) Refuse("a character class within a character class");
      items += Peek() == '\\' ? Escape(/*in_class=*/true) : std::string(1, Next());
    }
    if (items.empty()) Refuse("an empty character class");
    return items;
  }

  void Group() {
    static constexpr std::string_view kOpenings[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                     "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (LooksAt("(*")) Refuse("(*");
    if (!LooksAt("(?")) {
      out_ += Next();
      return;
    }
    if (at_ == 0 && LooksAt("(?i)")) {  // elsewhere its reach over alternatives differs
      out_ += "(?i)";
      at_ += 4;
      return;
    }
    for (const std::string_view opening : kOpenings) {
      if (LooksAt(opening)) {
        out_ += opening;
        at_ += opening.size();
        return;
      }
    }
    Refuse(fmt::format("the group {}", pattern_.substr(at_, 4)));
  }

  // {n}, {n,} or {n,m}. A following + (possessive in PCRE2, a second quantifier in Oniguruma) and
  // {n}? (lazy in PCRE2, optional in Oniguruma) mean different things.
  void Interval() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view body =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 1, close - at_ - 1);
    const bool digits_first = !body.empty() && body[0] >= '0' && body[0] <= '9';
    if (!digits_first || body.find_first_not_of("0123456789,") != std::string_view::npos) {
      Refuse("a brace that does not begin {n}, {n,} or {n,m}");
    }
    out_ += pattern_.substr(at_, body.size() + 2);
    at_ = close + 1;
    if (LooksAt("+")) Refuse("an interval followed by +");
    if (LooksAt("?") && body.find(',') == std::string_view::npos) Refuse("{n}?");
  }

  std::string_view pattern_;
  std::string_view where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string TranslateSplitPattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace outrider
