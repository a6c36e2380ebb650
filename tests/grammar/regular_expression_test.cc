// Regular expressions, of JSON schemas and for whole texts: what they become, what is refused.
#include "outrider/grammar/regular_expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using testing::HasSubstr;

// Any text of a JSON string without escapes.
const std::string kAny = "[ -!#-\\u{5b}\\u{5d}-\\u{d7ff}\\u{e000}-\\u{10ffff}]*";

TEST(JsonStringPatternTest, IsPlain) {
  for (const auto& [pattern, plain] : std::vector<std::pair<const char*, const char*>>{
           {"abc", "abc"},
           {"(?:a|b)+?", "(a|b)+"},
           {"(?<year>[0-9]{4})", "([0-9]{4,4})"},
           {"\\d{2,}\\.", "[0-9]{2,2}[0-9]*\\u{2e}"},
           {"(ab)?c{3}", "((ab)|)c{3,3}"},
           {"[b-da]", "[a-d]"},
           {"[\\w-]", "[\\u{2d}0-9A-Z_a-z]"},
           {"[^\\x00-\\x7f]", "[\\u{80}-\\u{d7ff}\\u{e000}-\\u{10ffff}]"},
           {"\xc3\xa9", "\\u{e9}"},
           {"\\ud83d\\ude00", "\\u{1f600}"},
           {"[\\^a]", "[a\\u{5e}]"},
           {"[\\^]", "\\u{5e}"},
           {"[\\^-`]", "[_-`\\u{5e}]"},
           {"", ""},
           {"a]}", "a\\u{5d}\\u{7d}"},
           {"[^]a]", "[ -!#-\\u{5b}\\u{5d}-\\u{d7ff}\\u{e000}-\\u{10ffff}]a\\u{5d}"},
       }) {
    const auto expect = [](const std::string& given, const std::string& wanted) {
      const std::string result = PatternForJsonString(given);
      EXPECT_EQ(result, wanted) << given;
      EXPECT_EQ(PatternForJsonString(result), result) << given;
    };
    // Without anchors it may match anywhere.
    expect(std::string("^") + pattern + "$", std::string("^") + plain + "$");
    expect(pattern, "^" + kAny + plain + kAny + "$");
    expect(std::string("^") + pattern, std::string("^") + plain + kAny + "$");
    expect(std::string(pattern) + "$", "^" + kAny + plain + "$");
  }
}

// Each alternative is anchored or not for itself.
TEST(JsonStringPatternTest, AnchorsCountWhereTheyStand) {
  for (const auto& [pattern, plain] : std::vector<std::pair<std::string, std::string>>{
           {"a|b", "^" + kAny + "(a|b)" + kAny + "$"},
           {"^a|b$", "^(a" + kAny + "|" + kAny + "b)$"},
           {"^a$|b", "^(a|" + kAny + "b" + kAny + ")$"},
           {"^(a|b)$", "^(a|b)$"},
           {"^(^a|b$)$", "^(a|b)$"},
           {"^((^a|b$)|c)", "^((a" + kAny + "|b)|c" + kAny + ")$"},
           {"((^a|b)|c)$", "^((a|" + kAny + "b)|" + kAny + "c)$"},
           {"(^a|b)c", "^(a|" + kAny + "b)c" + kAny + "$"},
           {"(a|^(b|c$))", "^(" + kAny + "a" + kAny + "|(b" + kAny + "|c))$"},
           {"^", "^" + kAny + "$"},
           {"^$", "^$"},
       }) {
    EXPECT_EQ(PatternForJsonString(pattern), plain) << pattern;
    EXPECT_EQ(PatternForJsonString(plain), plain) << pattern;
  }
}

TEST(ExpressionForTextTest, IsForWholeTexts) {
  for (const auto& [expression, plain] : std::vector<std::pair<const char*, const char*>>{
           {"abc", "abc"},
           {"^abc$", "abc"},
           {"a|b", "a|b"},
           {"a\\nb", "a\\u{a}b"},
           {"\"\\\\", "\"\\u{5c}"},
           // A line end is no character like others.
           {".",
            "[\\u{1}-\\u{9}\\u{b}-\\u{c}\\u{e}-\\u{2027}\\u{202a}-\\u{d7ff}\\u{e000}-"
            "\\u{10ffff}]"},
           {"[^]", "[\\u{1}-\\u{d7ff}\\u{e000}-\\u{10ffff}]"},
           {"[^]a]", "[\\u{1}-\\u{d7ff}\\u{e000}-\\u{10ffff}]a\\u{5d}"},
           {"[\\]a]", "[\\u{5d}a]"},
           {"[^\\]a]", "[\\u{1}-\\u{5c}\\u{5e}-`b-\\u{d7ff}\\u{e000}-\\u{10ffff}]"},
           {"\\s", "[\\u{9}-\\u{d} ]"},
       }) {
    const std::string result = ExpressionForText(expression);
    EXPECT_EQ(result, plain) << expression;
    EXPECT_EQ(ExpressionForText(result), result) << expression;
  }
  for (const char* expression : {"[]a]", "[]", "a^b", "(?=a)", "\\p{L}", "a{2", "\\x00"}) {
    EXPECT_THROW(ExpressionForText(expression), Error) << expression;
  }
}

// What JSON has to escape, and white space that one dialect knows and another does not.
TEST(JsonStringPatternTest, ClassesHoldWhatAllDialectsSeeAlike) {
  EXPECT_EQ(PatternForJsonString("^\\s$"), "^[ ]$");
  EXPECT_EQ(PatternForJsonString("^[^\\S]$"), "^[ ]$");
  EXPECT_EQ(PatternForJsonString("\\S"), PatternForJsonString("[^\\s]"));
  EXPECT_THAT(PatternForJsonString("\\S"), HasSubstr("\\u{a1}"));
  for (const char* pattern : {".", "\\S", "[^x]", "[\\s\\S]"}) {
    const std::string plain = PatternForJsonString('^' + std::string(pattern) + '$');
    EXPECT_THAT(plain, testing::StartsWith(plain.starts_with("^[ ") ? "^[ -!#-" : "^[!#-"));
    EXPECT_THAT(plain, HasSubstr("\\u{d7ff}\\u{e000}")) << "surrogates are no characters";
  }
  EXPECT_THAT(PatternForJsonString("."), HasSubstr("\\u{2027}\\u{202a}"));
}

TEST(JsonStringPatternTest, RefusesWhatItCannotExpress) {
  for (const auto& [pattern, message] : std::vector<std::pair<const char*, const char*>>{
           {"(?=a)", "lookahead"},
           {"(?<!a)b", "lookbehind"},
           {"(?i)a", "this kind of group"},
           {"\\bword\\b", "\\b is not supported"},
           {"\\p{L}", "\\p is not supported"},
           {"(a)\\1", "\\1 is not supported"},
           {"\\A", "\\A is not supported"},
           {"a^b", "anchor in the middle"},
           {"a$b", "anchor in the middle"},
           {"a(^b|c)", "anchor in the middle"},
           {"(a$|b)c", "anchor in the middle"},
           {"(^a)*", "anchor that is repeated"},
           {"a\"", "U+0022"},
           {"\\\\", "U+005C"},
           {"\\n", "U+000A"},
           {"[\"]", "holds nothing"},
           {"a**", "repetition of a repetition"},
           {"a{2}{3}", "repetition of a repetition"},
           {"a{2, 3}", "must look like"},
           {"a{,3}", "must look like"},
           {"a{3,2}", "ends before it begins"},
           {"*a", "needs a backslash"},
           {"a(", "not closed"},
           {"a)", "closes nothing"},
           {"[a", "not closed"},
           {"[]", "is empty"},
           {"[z-a]", "ends before it begins"},
           {"[\\d-z]", "cannot begin a range"},
           {"\\ud83d", "half a surrogate pair"},
           {"\\u12", "digits are missing"},
           {"\\", "escapes nothing"},
       }) {
    try {
      PatternForJsonString(pattern);
      ADD_FAILURE() << pattern << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(message)) << pattern;
    }
  }
}

}  // namespace
}  // namespace outrider
