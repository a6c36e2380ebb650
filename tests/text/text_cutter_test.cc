// Where long text is cut, against the rule said in another way.
#include "outrider/text/text_cutter.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "outrider/text/utf8.h"

namespace outrider {
namespace {

std::vector<std::string> Pieces(const std::string& text, const CutLimits& limits) {
  std::vector<std::string> pieces;
  CutText(text, limits, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

using Strings = std::vector<std::string>;

TEST(CutText, LeavesShortTextWhole) {
  EXPECT_EQ(Pieces("", {.text = 4, .run = 2}), Strings{});
  EXPECT_EQ(Pieces("ab", {.text = 4, .run = 2}), Strings{"ab"});
  EXPECT_EQ(Pieces("a b c d e f g", {.text = 0, .run = 2}), Strings{"a b c d e f g"});
  EXPECT_EQ(Pieces(std::string(100, 'a'), {}), Strings{std::string(100, 'a')});
}

TEST(CutText, CutsLongRunsAndLongText) {
  EXPECT_EQ(Pieces("abcde", {.text = 0, .run = 2}), (Strings{"ab", "cd", "e"}));
  EXPECT_EQ(Pieces("a   b", {.text = 0, .run = 2}), (Strings{"a  ", " b"}));
  EXPECT_EQ(Pieces("abc  d", {.text = 0, .run = 3}), Strings{"abc  d"});
  EXPECT_EQ(Pieces("今天天气", {.text = 0, .run = 3}), (Strings{"今天天", "气"}));
  EXPECT_EQ(Pieces("a b c d", {.text = 3, .run = 2}), (Strings{"a b", " c ", "d"}));
  // A run begins anew behind a cut of the text.
  EXPECT_EQ(Pieces("abcdefg", {.text = 3, .run = 2}), (Strings{"ab", "c", "de", "f", "g"}));
}

TEST(CutText, TakesForWhiteSpaceWhatPythonDoes) {
  for (const std::string space : {" ", "\t", "\x0B", "\x1C", "\x1F", "\u0085", "\u00A0", "\u1680",
                                  "\u2003", "\u2028", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_EQ(Pieces("aa" + space + "aa", {.text = 0, .run = 3}), Strings{"aa" + space + "aa"});
  }
  for (const std::string other : {"\x1B", "\u180E", "\u200B", "\uFEFF", "\u00A1", "。"}) {
    EXPECT_EQ(Pieces("aa" + other + "aa", {.text = 0, .run = 3}), (Strings{"aa" + other, "aa"}));
  }
}

TEST(CutText, KeepsToItsLimits) {
  EXPECT_TRUE(rc::check("no piece and no run in it is too long, and no cut is without need", [] {
    std::string text;
    for (const bool space : *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>())) {
      text += space ? " " : "é";
    }
    const CutLimits limits = {.text = *rc::gen::inRange<size_t>(1, 9),
                              .run = *rc::gen::inRange<size_t>(1, 5)};
    std::string joined;
    size_t characters = 0;  // before this piece
    size_t last_run = 0;    // at the end of the pieces so far
    std::string last;
    for (const std::string& piece : Pieces(text, limits)) {
      RC_ASSERT(!piece.empty());
      const std::string first = piece.substr(0, ReadUtf8(piece).size);
      if (characters > 0 && characters % limits.text != 0) {
        RC_ASSERT(first == last);
        RC_ASSERT(last_run == limits.run);
      }
      last.clear();
      for (size_t at = 0; at < piece.size(); ++characters) {
        RC_ASSERT(at == 0 || characters % limits.text != 0);
        const std::string character = piece.substr(at, ReadUtf8(piece.substr(at)).size);
        last_run = character == last ? last_run + 1 : 1;
        RC_ASSERT(last_run <= limits.run);
        last = character;
        at += character.size();
      }
      joined += piece;
    }
    RC_ASSERT(joined == text);
  }));
}

}  // namespace
}  // namespace outrider
