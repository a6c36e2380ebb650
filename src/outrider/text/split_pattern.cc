#include "outrider/text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

// White space and word characters as Oniguruma has them, as items of a character class. PCRE2's own
// \s also takes U+180E and its \w leaves out marks and connector punctuation.
constexpr std::string_view kSpaceItems = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordItems = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of classes, Oniguruma's \w also takes ² ³ ¹ ¼ ½ ¾.
constexpr std::string_view kWordItemsOfLatin1 = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// Whether PCRE2 knows `name` as a script.
bool IsScript(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

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
        case ')':
          CloseGroup();
          break;
        case '{':
          Interval();
          break;
        case '|':
          last_letter_ = '\0';
          out_ += Next();
          break;
        default:
          CheckPair();
          out_ += NextCharacter();
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

  // One character that is no escape.
  std::string_view NextCharacter() {
    const std::string_view rest = pattern_.substr(at_);
    const std::string_view character = rest.substr(0, ReadUtf8(rest).size);
    CheckIgnoringCase(character);
    at_ += character.size();
    return character;
  }

  // Where case is ignored, Oniguruma folds strings and PCRE2 characters: "ss" matches ß in the one
  // only. They agree on ASCII without such pairs, and on punctuation (U+2000 to U+203F here).
  void CheckIgnoringCase(std::string_view character) const {
    if (ignore_case_ && static_cast<unsigned char>(character[0]) >= 0x80 &&
        !character.starts_with("\xE2\x80")) {
      Refuse("a character beyond ASCII where case is ignored");
    }
  }

  // The same for the character to come and the letter before it. Quantifiers and parentheses
  // between two letters do not always part them: s(?i:s) matches ß.
  void CheckPair() {
    if (LooksAt("?") || LooksAt("*") || LooksAt("+")) return;
    const auto byte = static_cast<unsigned char>(Peek());
    const char letter = std::isalpha(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '\0';
    for (const std::string_view pair : {"ss", "ff", "fi", "fl", "st"}) {
      if (pair[0] == last_letter_ && pair[1] == letter && (ignore_case_ || last_ignored_case_)) {
        Refuse(fmt::format("\"{}\" where case is ignored", pair));
      }
    }
    last_letter_ = letter;
    last_ignored_case_ = ignore_case_;
  }

  // One escape sequence, translated. Within a class the result is a list of class items.
  std::string Escape(bool in_class) {
    Next();
    last_letter_ = '\0';
    const char letter = Need("escape");
    if (ignore_case_ && std::string_view("wWpP").find(letter) != std::string_view::npos) {
      Refuse(fmt::format("\\{} where case is ignored", letter));
    }
    const auto as_class = [in_class](const std::string& items, bool negated) {
      return in_class ? items : fmt::format("[{}{}]", negated ? "^" : "", items);
    };
    const std::string space(kSpaceItems);
    const std::string word = fmt::format("{}{}", kWordItems, in_class ? "" : kWordItemsOfLatin1);
    switch (letter) {
      case 's':
        return as_class(space, false);
      case 'w':
        return as_class(word, false);
      case 'S':
      case 'W':
        if (in_class) Refuse(fmt::format("\\{} inside a character class", letter));
        return as_class(letter == 'S' ? space : word, true);
      case 'v':
        return "\\x0B";
      case 'p':
      case 'P':
        return Property(letter);
      case 'u':
      case 'x':
        if (ignore_case_) Refuse(fmt::format("\\{} where case is ignored", letter));
        return letter == 'u' ? fmt::format("\\x{{{}}}", Hexadecimal(4)) : HexadecimalEscape();
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
    // PCRE2 reads the bare name of a script as Script_Extensions.
    const bool negated = name.starts_with('^');
    const std::string_view script = std::string_view(name).substr(negated ? 1 : 0);
    if (!IsScript(script)) return fmt::format("\\{}{{{}}}", letter, name);
    return fmt::format("\\{}{{sc:{}}}", negated != (letter == 'P') ? 'P' : 'p', script);
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
    last_letter_ = '\0';
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
      if (Peek() == '\\') {
        items += Escape(/*in_class=*/true);
      } else {
        items += NextCharacter();
      }
    }
    if (items.empty()) Refuse("an empty character class");
    return items;
  }

  void Group() {
    static constexpr std::string_view kOpenings[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                     "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (LooksAt("(*")) Refuse("(*");
    if (at_ == 0 && LooksAt("(?i)")) {  // elsewhere its reach over alternatives differs
      out_ += "(?i)";
      at_ += 4;
      ignore_case_ = true;
      return;
    }
    outer_ignore_case_.push_back(ignore_case_);
    if (!LooksAt("(?")) {
      out_ += Next();
      return;
    }
    for (const std::string_view opening : kOpenings) {
      if (LooksAt(opening)) {
        if (opening == "(?i:") ignore_case_ = true;
        if (opening == "(?-i:") ignore_case_ = false;
        out_ += opening;
        at_ += opening.size();
        return;
      }
    }
    Refuse(fmt::format("the group {}", pattern_.substr(at_, 4)));
  }

  void CloseGroup() {
    if (outer_ignore_case_.empty()) Refuse("a ) without its (");
    ignore_case_ = outer_ignore_case_.back();
    outer_ignore_case_.pop_back();
    out_ += Next();
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
  bool ignore_case_ = false;             // at at_
  std::vector<bool> outer_ignore_case_;  // of the open groups: what holds when they close
  char last_letter_ = '\0';  // the ASCII letter before at_, in lower case, or 0 for anything else
  bool last_ignored_case_ = false;  // ignore_case_ at that letter
};

}  // namespace

std::string TranslateSplitPattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace outrider
