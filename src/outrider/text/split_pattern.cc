// Longer than most files: a parser, and the matcher of what it gives.
#include "outrider/text/split_pattern.h"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/code_point_set.h"
#include "outrider/text/unicode_property.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

// White space and word characters as Oniguruma has them.
CodePointSet Space() {
  CodePointSet set = UnicodeProperty("z");
  set.Add('\t', '\r');
  set.Add(0x85, 0x85);
  return set;
}

CodePointSet Word(bool in_class) {
  CodePointSet set = UnicodeProperty("alphabetic");
  for (const std::string_view name : {"m", "nd", "pc"}) set.Add(UnicodeProperty(name));
  if (!in_class) {  // outside of classes \w also takes ² ³ ¹ ¼ ½ ¾
    set.Add(0xB2, 0xB3);
    set.Add(0xB9, 0xB9);
    set.Add(0xBC, 0xBE);
  }
  return set;
}

// Adds the other cases of ASCII letters, among them ſ and the Kelvin sign.
void AddOtherCases(CodePointSet* set) {
  CodePointSet others;
  for (uint32_t lower = 'a'; lower <= 'z'; ++lower) {
    const uint32_t upper = lower - 'a' + 'A';
    if (!set->Contains(lower) && !set->Contains(upper)) continue;
    others.Add(lower, lower);
    others.Add(upper, upper);
    if (lower == 's') others.Add(0x17F, 0x17F);
    if (lower == 'k') others.Add(0x212A, 0x212A);
  }
  set->Add(others);
}

// The bytes of `kinds`, ascending, as a character class of PCRE2.
std::string ByteClass(std::string_view kinds) {
  if (kinds.empty()) return "[^\\x00-\\xFF]";
  std::string text = "[";
  for (size_t i = 0; i < kinds.size();) {
    const auto first = static_cast<uint8_t>(kinds[i]);
    uint8_t last = first;
    for (++i; i < kinds.size() && static_cast<uint8_t>(kinds[i]) == last + 1; ++i) ++last;
    text += fmt::format("\\x{:02X}", first);
    if (last > first) text += fmt::format("-\\x{:02X}", last);
  }
  return text + "]";
}

// What an escape sequence stands for: one character, a set of them, or a place in the text.
struct Escaped {
  std::optional<uint32_t> point;
  CodePointSet set;
  std::string_view assertion;
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  SplitPattern Run() {
    while (!AtEnd()) {
      switch (Peek()) {
        case '\\':
          AddEscape();
          break;
        case '[':
          AddSet(Class());
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
          AddCharacter();
      }
    }
    const CharacterKinds kinds(sets_, where_);
    std::string expression;
    for (size_t i = 0; i < sets_.size(); ++i) {
      expression += before_sets_[i] + ByteClass(kinds.KindsOf(sets_[i]));
    }
    return {expression + out_, kinds};
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

  void AddSet(CodePointSet set) {
    before_sets_.push_back(std::exchange(out_, ""));
    sets_.push_back(std::move(set));
  }

  void AddPoint(uint32_t point) {
    CodePointSet set(point, point);
    if (ignore_case_) AddOtherCases(&set);
    AddSet(std::move(set));
  }

  // One character that is no escape: itself, or an operator of one character.
  void AddCharacter() {
    CheckPair();
    const char first = Peek();
    const uint32_t point = NextPoint();
    if (point < 0x80 && std::isalnum(static_cast<unsigned char>(first)) == 0) {
      out_ += first;
    } else {
      AddPoint(point);
    }
  }

  uint32_t NextPoint() {
    const std::string_view rest = pattern_.substr(at_);
    const Utf8Unit unit = ReadUtf8(rest);
    if (unit.kind != Utf8Kind::kValid) Refuse("text that is not valid UTF-8");
    const std::string_view character = rest.substr(0, unit.size);
    CheckIgnoringCase(character);
    at_ += character.size();
    return CodePointOf(character);
  }

  // Where case is ignored, Oniguruma folds strings and PCRE2 characters: "ss" matches ß in the one
  // only. They agree on ASCII without such pairs, and on punctuation (U+2000 to U+203F here).
  void CheckIgnoringCase(std::string_view character) const {
    if (ignore_case_ && static_cast<unsigned char>(character[0]) >= 0x80 &&
        !character.starts_with("\xE2\x80")) {
      Refuse("a character beyond ASCII where case is ignored");
    }
  }

  // Checks the character to come with the letter before it. Quantifiers and parentheses
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

  void AddEscape() {
    const Escaped escaped = Escape(/*in_class=*/false);
    if (!escaped.assertion.empty()) {
      out_ += escaped.assertion;
    } else if (escaped.point.has_value()) {
      AddPoint(*escaped.point);
    } else {
      AddSet(escaped.set);
    }
  }

  Escaped Escape(bool in_class) {
    Next();
    last_letter_ = '\0';
    const char letter = Need("escape");
    if (ignore_case_ && std::string_view("wWpPux").find(letter) != std::string_view::npos) {
      Refuse(fmt::format("\\{} where case is ignored", letter));
    }
    const auto point = [](uint32_t value) { return Escaped{value, {}, {}}; };
    const auto set = [](CodePointSet value) { return Escaped{{}, std::move(value), {}}; };
    switch (letter) {
      case 's':
        return set(Space());
      case 'S':
        return set(Space().Complement());
      case 'w':
        return set(Word(in_class));
      case 'W':
        return set(Word(in_class).Complement());
      case 'd':
        return set(UnicodeProperty("nd"));
      case 'D':
        return set(UnicodeProperty("nd").Complement());
      case 'p':
      case 'P':
        return set(Property(letter));
      case 'u':
        return point(CodePoint(Hexadecimal(4)));
      case 'x':
        return point(CodePoint(HexadecimalEscape()));
      case 'A':
      case 'z':
        if (in_class) Refuse(fmt::format("\\{} inside a character class", letter));
        return {{}, {}, letter == 'A' ? "\\A" : "\\z"};
      case 'r':
        return point('\r');
      case 'n':
        return point('\n');
      case 't':
        return point('\t');
      case 'v':
        return point('\v');
      case 'f':
        return point('\f');
      case 'a':
        return point('\a');
      case 'e':
        return point(0x1B);
      default:
        if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
          Refuse(fmt::format("\\{}", letter));
        }
        --at_;
        return point(NextPoint());
    }
  }

  CodePointSet Property(char letter) {
    if (Need("\\p") != '{') Refuse("\\p without braces");
    std::string name;
    for (char c = Need("\\p{"); c != '}'; c = Need("\\p{")) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '^') {
        Refuse("this character in a property name");
      }
      name += c;
    }
    const bool inverted = name.starts_with('^');
    const std::optional<CodePointSet> found = FindUnicodeProperty(name.substr(inverted ? 1 : 0));
    if (!found.has_value()) Refuse(fmt::format("the property {}", name));
    return inverted == (letter == 'P') ? *found : found->Complement();
  }

  uint32_t CodePoint(std::string_view hexadecimal) const {
    uint32_t point = 0;
    const char* const begin = hexadecimal.data();
    const auto [stop, error] = std::from_chars(begin, begin + hexadecimal.size(), point, 16);
    const bool whole = stop == begin + hexadecimal.size();
    if (error != std::errc() || !whole || point > CodePointSet::kLast) {
      Refuse("a number that is no character's");
    }
    return point;
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
    if (AtEnd() || Peek() != '{') return Hexadecimal(2);
    Next();
    std::string number;
    for (char c = Need("\\x{"); c != '}'; c = Need("\\x{")) number += c;
    return number;
  }

  // A character class, perhaps with intersections: [A], [^A], [A&&[B]], [A&&[^B]].
  CodePointSet Class() {
    Next();
    const bool negated = LooksAt("^");
    if (negated) Next();
    CodePointSet set = ClassItems();
    last_letter_ = '\0';
    while (LooksAt("&&")) {
      at_ += 2;
      if (negated || !LooksAt("[")) Refuse("an intersection other than [A&&[B]] and [A&&[^B]]");
      Next();
      const bool without = LooksAt("^");
      if (without) Next();
      const CodePointSet other = ClassItems();
      if (Need("character class") != ']') Refuse("an intersection within an intersection");
      set = set.Intersection(without ? other.Complement() : other);
    }
    if (Need("character class") != ']') Refuse("anything after [A&&[B]");
    return negated ? set.Complement() : set;
  }

  // The items of a class up to its closing bracket or an `&&`, which stays unread.
  CodePointSet ClassItems() {
    CodePointSet items;
    int64_t first = -1;  // a character that may begin a range
    bool empty = true;
    bool after_set = false;
    const auto ends = [this] { return LooksAt("]") || LooksAt("&&"); };
    while (true) {
      if (AtEnd()) Refuse("unfinished character class");
      if (ends()) break;
      const bool is_first = std::exchange(empty, false);
      const bool is_hyphen = LooksAt("-");
      const Escaped item = ClassItem();
      if (is_hyphen && after_set && !ends()) Refuse("a range that begins with a set of characters");
      if (is_hyphen && first >= 0 && !ends()) {
        const Escaped last = ClassItem();
        if (!last.point.has_value()) Refuse("a range that ends in a set of characters");
        if (*last.point < first) Refuse("a range whose end comes before its beginning");
        items.Add(static_cast<uint32_t>(first), *last.point);
        first = -1;
      } else if (item.point.has_value()) {
        items.Add(*item.point, *item.point);
        first = is_hyphen && is_first ? -1 : int64_t{*item.point};
      } else {
        items.Add(item.set);
        first = -1;
      }
      after_set = !item.point.has_value();
    }
    if (empty) Refuse("an empty character class");
    if (ignore_case_) AddOtherCases(&items);
    return items;
  }

  Escaped ClassItem() {
    if (AtEnd()) Refuse("unfinished character class");
    if (LooksAt("[")) Refuse("a character class within a character class");
    if (Peek() == '\\') return Escape(/*in_class=*/true);
    return {NextPoint(), {}, {}};
  }

  void Group() {
    static constexpr std::string_view kOpenings[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                     "(?<=", "(?<!", "(?i:", "(?-i:"};
    if (LooksAt("(*")) Refuse("(*");
    if (at_ == 0 && LooksAt("(?i)")) {  // elsewhere its reach over alternatives differs
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
        const bool sets_case = opening.ends_with("i:");
        if (sets_case) ignore_case_ = opening == "(?i:";
        out_ += sets_case ? "(?:" : opening;
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
  std::vector<CodePointSet> sets_;
  std::vector<std::string> before_sets_;  // of each set: what stands between it and the one before
  std::string out_;                       // what stands after the last set
  bool ignore_case_ = false;              // at at_
  std::vector<bool> outer_ignore_case_;   // of the open groups: what holds when they close
  char last_letter_ = '\0';  // the ASCII letter before at_, in lower case, or 0 for anything else
  bool last_ignored_case_ = false;  // ignore_case_ at that letter
};

}  // namespace

SplitPattern TranslateSplitPattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace outrider
