// Longer than most files: one parser, a rule for each piece of the syntax.
#include "outrider/grammar/regular_expression.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/grammar/code_set.h"

namespace outrider {
namespace {

constexpr size_t kMaxText = size_t{1} << 18;  // of a pattern that is written plainly

const CodeSet kDigits = {{'0', '9'}};
const CodeSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeSet kAsciiSpace = {{0x09, 0x0D}, {' ', ' '}};
// What any of the dialects (ECMA-262, Python) takes for white space.
const CodeSet kAnySpace = {{0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                           {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                           {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodeSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
// What JSON spells with an escape: control characters, quotation mark, backslash; surrogates.
const CodeSet kEscapedInJson = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}};
// What no text has: surrogates, and NUL, which xgrammar cannot read.
const CodeSet kInNoText = {{0, 0}, {0xD800, 0xDFFF}};

/// What an escape stands for: one character, or a class. Of a class, what belongs to it by all
/// dialects and what belongs to it by some.
struct EscapedCharacters {
  std::optional<uint32_t> character;
  CodeSet by_all;
  CodeSet by_some;
};

/// Where an expression has to match.
enum class Place : uint8_t { kWholeText, kAnywhereInJsonString };

class ExpressionReader {
 public:
  ExpressionReader(std::string_view pattern, Place place)
      : pattern_(pattern),
        anywhere_(place == Place::kAnywhereInJsonString),
        excluded_(anywhere_ ? kEscapedInJson : kInNoText) {}

  std::string Read() {
    Part all = Alternatives(/*at_begin=*/true);
    if (at_ < pattern_.size()) Fail("')' closes nothing");
    if (!anywhere_) return Replaced(Replaced(all.text, kBefore, ""), kAfter, "");
    all.text = Replaced(Replaced(all.text, kBefore, Anything()), kAfter, Anything());
    if (all.text.size() > kMaxText) Fail("the pattern is too large");
    // With anchors, so that it says the same when it is read again.
    if (all.has_alternatives) all.text = fmt::format("({})", all.text);
    const std::string before = all.anchored_begin ? "" : Anything();
    const std::string after = all.anchored_end ? "" : Anything();
    return "^" + before + all.text + after + "$";
  }

 private:
  struct Part {
    std::string text;
    bool anchored_begin = false;  // holds a '^'
    bool anchored_end = false;    // holds a '$'
    bool has_alternatives = false;
  };

  struct Repetition {
    int least = 0;
    std::optional<int> most;  // nothing: without end
  };

  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidArgument("{} \"{}\", at character {}: {}",
                          anywhere_ ? "\"pattern\"" : "the expression", pattern_.substr(0, 100),
                          at_ + 1, fmt::format(format, std::forward<Args>(args)...));
  }

  bool Ends() const { return at_ == pattern_.size(); }
  bool Sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  bool Take(std::string_view text) {
    if (!Sees(text)) return false;
    at_ += text.size();
    return true;
  }

  // Stand for any text before or after a match, until it is known whether an anchor forbids it.
  static constexpr char kBefore = '\x01';
  static constexpr char kAfter = '\x02';

  static std::string Replaced(const std::string& text, char from, const std::string& to) {
    std::string replaced;
    for (const char c : text) {
      if (c == from) {
        replaced += to;
      } else {
        replaced += c;
      }
    }
    return replaced;
  }

  std::string Anything() const { return ClassText(Complement({})) + "*"; }

  Part Alternatives(bool at_begin) {
    if (++depth_ > 100) Fail("groups are nested too deeply");
    Part all;
    std::vector<Part> parts;
    do {
      parts.push_back(Sequence(at_begin));
      all.anchored_begin |= parts.back().anchored_begin;
      all.anchored_end |= parts.back().anchored_end;
    } while (Take("|"));
    --depth_;
    all.has_alternatives = parts.size() > 1;
    for (const Part& part : parts) {
      if (&part != &parts.front()) all.text += '|';
      // Beside one with an anchor, the others may match anywhere, unless there is one outside.
      if (all.anchored_begin && !part.anchored_begin) all.text += kBefore;
      all.text += part.text;
      if (all.anchored_end && !part.anchored_end) all.text += kAfter;
    }
    return all;
  }

  // Up to '|', ')' or the end. Anchors say where the text's ends are, and can match nowhere else.
  Part Sequence(bool at_begin) {
    Part all;
    while (!Ends() && !Sees("|") && !Sees(")")) {
      if (all.anchored_end && !Sees("$")) Fail("an anchor in the middle is not supported");
      if (Take("^")) {
        if (!at_begin) Fail("an anchor in the middle is not supported");
        all.anchored_begin = true;
        continue;
      }
      if (Take("$")) {
        all.text = Replaced(all.text, kAfter, "");
        all.anchored_end = true;
        continue;
      }
      Part item = Item(at_begin);
      if (all.anchored_begin) item.text = Replaced(item.text, kBefore, "");
      const std::optional<Repetition> repetition = Quantifier();
      if (repetition && (item.anchored_begin || item.anchored_end)) {
        Fail("an anchor that is repeated is not supported");
      }
      if (all.text.size() + 2 * item.text.size() > kMaxText) Fail("the pattern is too large");
      all.text += repetition ? Repeated(item.text, *repetition) : item.text;
      all.anchored_begin |= item.anchored_begin;
      all.anchored_end |= item.anchored_end;
      at_begin = false;
    }
    return all;
  }

  Part Item(bool at_begin) {
    if (Take("(")) {
      if (Take("?") && !Take(":")) {
        if (Sees("=") || Sees("!") || Sees("<=") || Sees("<!")) {
          Fail("lookahead and lookbehind are not supported");
        }
        if (!Take("<") && !Take("P<")) Fail("this kind of group is not supported");
        while (!Ends() && !Sees(">")) ++at_;
        if (!Take(">")) Fail("a group's name has no end");
      }
      Part group = Alternatives(at_begin);
      if (!Take(")")) Fail("a parenthesis is not closed");
      group.text = fmt::format("({})", group.text);
      group.has_alternatives = false;
      return group;
    }
    Part item;
    if (Take(".")) {
      item.text = ClassText(Complement(kLineEnds));
    } else if (Take("[")) {
      item.text = Class();
    } else if (Take("\\")) {
      const EscapedCharacters escaped = Escape(/*in_class=*/false);
      item.text = escaped.character ? CharacterText(*escaped.character) : ClassText(escaped.by_all);
    } else {
      for (const std::string_view special : {"*", "+", "?", "{"}) {
        if (Sees(special)) Fail("'{}' needs a backslash here", special);
      }
      item.text = CharacterText(Character());
    }
    return item;
  }

  std::optional<Repetition> Quantifier() {
    Repetition repetition;
    if (Take("*")) {
      repetition = {0, std::nullopt};
    } else if (Take("+")) {
      repetition = {1, std::nullopt};
    } else if (Take("?")) {
      repetition = {0, 1};
    } else if (Take("{")) {
      repetition.least = Count();
      repetition.most = repetition.least;
      if (Take(",")) repetition.most = Sees("}") ? std::nullopt : std::optional(Count());
      if (!Take("}")) Fail("a repetition must look like {{2}}, {{2,}} or {{2,5}}");
      if (repetition.most && *repetition.most < repetition.least) {
        Fail("a repetition ends before it begins");
      }
    } else {
      return std::nullopt;
    }
    Take("?");  // what is matched does not depend on laziness
    if (Sees("*") || Sees("+") || Sees("?") || Sees("{")) {
      Fail("a repetition of a repetition needs parentheses");
    }
    return repetition;
  }

  // Without "?" and "{n,}": xgrammar's automata for them match more than they should.
  static std::string Repeated(const std::string& item, const Repetition& repetition) {
    const int least = repetition.least;
    if (!repetition.most) {
      if (least == 0) return item + "*";
      return least == 1 ? item + "+" : fmt::format("{0}{{{1},{1}}}{0}*", item, least);
    }
    if (least == 0 && *repetition.most == 1) return fmt::format("({}|)", item);
    return fmt::format("{}{{{},{}}}", item, least, *repetition.most);
  }

  int Count() {
    std::string digits;
    while (!Ends() && pattern_[at_] >= '0' && pattern_[at_] <= '9') digits += pattern_[at_++];
    if (digits.empty() || digits.size() > 6) {
      Fail("a repetition must look like {{2}}, {{2,}} or {{2,5}}");
    }
    return std::stoi(digits);
  }

  std::string Class() {
    // As in ECMA-262: a ']' ends the class wherever it stands, so [^] holds everything.
    const bool negated = Take("^");
    if (!negated && Sees("]")) {
      Fail("the character class [] is empty and matches nothing; \\] is the character");
    }
    CodeSet set;
    while (!Take("]")) {
      if (Ends()) Fail("'[' is not closed");
      const EscapedCharacters low = ClassMember();
      if (!low.character) {
        set = Union(set, negated ? low.by_some : low.by_all);
        if (Sees("-") && !Sees("-]")) Fail("a class cannot begin a range");
        continue;
      }
      uint32_t last = *low.character;
      if (Sees("-") && !Sees("-]")) {
        Take("-");
        const EscapedCharacters high = ClassMember();
        if (!high.character) Fail("a class cannot end a range");
        last = *high.character;
        if (last < *low.character) Fail("a range ends before it begins");
      }
      set = Union(set, {{*low.character, last}});
    }
    return ClassText(negated ? Complement(set) : set);
  }

  EscapedCharacters ClassMember() {
    if (Ends()) Fail("'[' is not closed");
    if (Take("\\")) return Escape(/*in_class=*/true);
    return {Character(), {}, {}};
  }

  // After a backslash.
  EscapedCharacters Escape(bool in_class) {
    if (Ends()) Fail("the backslash at the end escapes nothing");
    const auto character = [](uint32_t c) { return EscapedCharacters{c, {}, {}}; };
    const auto both = [](const CodeSet& set) { return EscapedCharacters{{}, set, set}; };
    const char c = pattern_[at_];
    const bool alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric) return character(Character());
    ++at_;
    switch (c) {
      case 'd':
        return both(kDigits);
      case 'D':
        return both(Complement(kDigits));
      case 'w':
        return both(kWord);
      case 'W':
        return both(Complement(kWord));
      case 's':
        return {{}, kAsciiSpace, kAnySpace};
      case 'S':
        return {{}, Complement(kAnySpace), Complement(kAsciiSpace)};
      case 'n':
        return character('\n');
      case 't':
        return character('\t');
      case 'r':
        return character('\r');
      case 'f':
        return character('\f');
      case 'v':
        return character('\v');
      case 'x':
        return character(Hexadecimal(2));
      case 'u':
        return character(UnicodeEscape());
      case 'b':
        if (in_class) return character(0x08);
        break;
      default:
        break;
    }
    --at_;
    Fail("the escape \\{} is not supported", c);
  }

  uint32_t UnicodeEscape() {
    if (Take("{")) {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos || end == at_ || end > at_ + 6) {
        Fail("\\u{{...}} takes one to six hexadecimal digits");
      }
      const uint32_t code = Hexadecimal(end - at_);
      Take("}");
      if (code > kLastCodePoint) Fail("\\u{{{:x}}} is beyond Unicode", code);
      return code;
    }
    const uint32_t code = Hexadecimal(4);
    if (code < 0xD800 || code > 0xDFFF) return code;
    if (code < 0xDC00 && Take("\\u")) {
      const uint32_t low = Hexadecimal(4);
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    Fail("half a surrogate pair is no character");
  }

  uint32_t Hexadecimal(size_t count) {
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const char c = Ends() ? '\0' : pattern_[at_];
      const std::string_view digits = "0123456789abcdef";
      const size_t digit = digits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      if (Ends() || digit == std::string_view::npos) Fail("hexadecimal digits are missing");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  // One character of the pattern, which is UTF-8, as all text of JSON is.
  uint32_t Character() {
    const auto byte = [&] { return static_cast<uint8_t>(pattern_[at_]); };
    uint32_t code = byte();
    ++at_;
    if (code < 0x80) return code;
    code &= code < 0xE0 ? 0x1FU : code < 0xF0 ? 0x0FU : 0x07U;
    for (; !Ends() && (byte() & 0xC0) == 0x80; ++at_) code = (code << 6) | (byte() & 0x3FU);
    return code;
  }

  static void AppendCharacter(uint32_t code, std::string_view special, std::string* text) {
    if (code >= 0x80 || code < 0x20 || code == 0x7F ||
        special.find(static_cast<char>(code)) != std::string_view::npos) {
      *text += fmt::format("\\u{{{:x}}}", code);
    } else {
      *text += static_cast<char>(code);
    }
  }

  std::string CharacterText(uint32_t code) const {
    for (const CodeRange range : excluded_) {
      if (code >= range.first && code <= range.last) {
        Fail("the character U+{:04X}{} is not supported", code,
             anywhere_ ? ", which JSON strings spell with an escape," : "");
      }
    }
    std::string text;
    AppendCharacter(code, "^$.*+?()[]{}|/-\\", &text);
    return text;
  }

  std::string ClassText(const CodeSet& set) const {
    CodeSet plain = Without(set, excluded_);
    if (plain.empty()) {
      Fail("a character class holds nothing{}",
           anywhere_ ? " that JSON strings spell without an escape" : "");
    }
    // At the beginning '^' would negate the class, however it is spelled.
    constexpr CodeRange kCaret = {'^', '^'};
    const bool caret_first = plain.front().first == kCaret.first;
    if (caret_first) plain = Without(plain, {kCaret});
    if (plain.empty()) return CharacterText('^');
    if (caret_first) plain.push_back(kCaret);
    std::string text;
    for (const CodeRange range : plain) {
      AppendCharacter(range.first, "^[]-&~|\\", &text);
      if (range.last > range.first) text += '-';
      if (range.last > range.first) AppendCharacter(range.last, "^[]-&~|\\", &text);
    }
    return fmt::format("[{}]", text);
  }

  std::string_view pattern_;
  bool anywhere_;
  const CodeSet& excluded_;  // from all classes
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string PatternForJsonString(std::string_view pattern) {
  return ExpressionReader(pattern, Place::kAnywhereInJsonString).Read();
}

std::string ExpressionForText(std::string_view expression) {
  return ExpressionReader(expression, Place::kWholeText).Read();
}

}  // namespace outrider
