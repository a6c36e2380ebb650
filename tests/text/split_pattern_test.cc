// What split patterns match, against the Oniguruma of Hugging Face's `tokenizers`: every character
// of every property (tools/make_tokenizer_goldens.py wrote which), and what only one of them can
// do.
#include "outrider/text/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/splitter.h"
#include "tests/sanitized.h"
#include "tests/text/golden_cases.h"

namespace outrider {
namespace {

using testing::HasSubstr;

constexpr uint32_t kEnd = 0x110000;

void AppendUtf8(uint32_t c, std::string* text) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    *text += static_cast<char>(c);
  } else if (c < 0x800) {
    *text += {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  } else if (c < 0x10000) {
    *text += {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  } else {
    *text += {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
  }
}

/// Whether a character is compared: with sanitizers the first 4,096 and every 16th behind them,
/// whose tables are the same.
bool IsCompared(uint32_t c) {
  const bool surrogate = c >= 0xD800 && c < 0xE000;  // no characters
  return !surrogate && (!kSanitized || c < 0x1000 || c % 16 == 0);
}

/// All characters that are compared, one after the other.
struct AllCharacters {
  AllCharacters() {
    for (uint32_t c = 0; c < kEnd; ++c) {
      offsets[c] = static_cast<uint32_t>(text.size());
      if (IsCompared(c)) AppendUtf8(c, &text);
    }
  }
  std::string text;
  std::vector<uint32_t> offsets = std::vector<uint32_t>(kEnd);
};

/// Whether each character is what `pattern`, of one character, matches.
std::vector<bool> Matched(const std::string& pattern) {
  static const AllCharacters kAll;
  const Splitter splitter(
      {.pattern = pattern + "+", .keep_matches = true, .keep_between = false, .where = "t"});
  std::vector<bool> matched(kEnd, false);
  SplitWorkspace workspace;
  splitter.Split(kAll.text, &workspace, [&](std::string_view piece) {
    const auto start = static_cast<uint32_t>(piece.data() - kAll.text.data());
    const auto end = static_cast<uint32_t>(start + piece.size());
    const auto first = std::upper_bound(kAll.offsets.begin(), kAll.offsets.end(), start) - 1;
    for (auto c = first; c != kAll.offsets.end() && *c < end; ++c) {
      matched[static_cast<size_t>(c - kAll.offsets.begin())] = true;
    }
  });
  return matched;
}

TEST(SplitPattern, TakesPropertiesForTheCharactersThatTheReferenceTakes) {
  std::ifstream file(GoldenCases() / "unicode_properties.json");
  const nlohmann::json properties = nlohmann::json::parse(file);
  ASSERT_EQ(properties.size(), 69U);
  for (const auto& [pattern, ranges] : properties.items()) {
    std::vector<bool> expected(kEnd, false);
    for (size_t i = 0; i < ranges.size(); i += 2) {
      std::fill(expected.begin() + ranges[i].get<int>(),
                expected.begin() + ranges[i + 1].get<int>() + 1, true);
    }
    const std::vector<bool> matched = Matched(pattern);
    std::vector<uint32_t> different;
    for (uint32_t c = 0; c < kEnd; ++c) {
      if (IsCompared(c) && matched[c] != expected[c]) different.push_back(c);
    }
    EXPECT_THAT(different, testing::IsEmpty()) << pattern;
  }
}

std::string Refusal(const std::string& pattern) {
  try {
    return "accepted as " + TranslateSplitPattern(pattern, "t").expression;
  } catch (const Error& error) {
    return error.what();
  }
}

/// Which of the characters `text` the pattern matches, one by one.
std::string Chosen(const std::string& pattern, const std::string& text) {
  const Splitter splitter({.pattern = pattern, .keep_between = false, .where = "t"});
  SplitWorkspace workspace;
  std::string chosen;
  splitter.Split(text, &workspace, [&](std::string_view piece) { chosen += piece; });
  return chosen;
}

// Later than the Unicode 14 of Debian's PCRE2.
TEST(SplitPattern, KnowsCharactersOfUnicode15And16) {
  EXPECT_EQ(Chosen("\\p{So}", "a🩷b🩵🩶🫨🪭c"), "🩷🩵🩶🫨🪭");
  EXPECT_EQ(Chosen("\\p{Kawi}", "a\U00011F04"), "\U00011F04");
  EXPECT_EQ(Chosen("\\p{Uppercase_Letter}", "a\U00010D50b"), "\U00010D50");  // Garay
}

TEST(SplitPattern, ReadsClassesAsTheReferenceDoes) {
  const std::string text = "abcxyzXÿé-^]& ²_1\n";
  EXPECT_EQ(Chosen("[a-cé]", text), "abcé");
  EXPECT_EQ(Chosen("[-a]", text), "a-");
  EXPECT_EQ(Chosen("[a-]", text), "a-");
  EXPECT_EQ(Chosen("[\\w-]", text), "abcxyzXÿé-_1");
  EXPECT_EQ(Chosen("[^\\W\\d]", text), "abcxyzXÿé_");
  EXPECT_EQ(Chosen("[\\p{L}&&[^a-y]]", text), "zXÿé");
  EXPECT_EQ(Chosen("[\\p{L}\\d&&[\\x00-\\x7F]&&[^\\p{Lu}]]", text), "abcxyz1");
  EXPECT_EQ(Chosen("(?i:[x-z])", text), "xyzX");
  EXPECT_EQ(Chosen("(?i:[^x-z])", "xXſ"), "ſ");
  EXPECT_EQ(Chosen("(?i:[r-t]|k)", "sSſ\u212AK"), "sSſ\u212AK");
  EXPECT_EQ(Chosen("é{2,}", "éaééé"), "ééé");
  EXPECT_THAT(Refusal("[a-\\d]"), HasSubstr("a range that ends in a set of characters"));
  EXPECT_THAT(Refusal("[\\w-x]"), HasSubstr("a range that begins with a set of characters"));
  EXPECT_THAT(Refusal("[z-a]"), HasSubstr("a range whose end comes before its beginning"));
  EXPECT_THAT(Refusal("\\p{Klingon}"), HasSubstr("the property Klingon is not supported"));
  EXPECT_THAT(Refusal("\\x{110000}"), HasSubstr("a number that is no character's"));
}

// Characters of one kind are one byte to PCRE2.
TEST(SplitPattern, RefusesMoreKindsOfCharactersThanBytesCanSay) {
  std::string many;
  for (uint32_t c = 0x4E00; c < 0x4E00 + 127; ++c) AppendUtf8(c, &many);
  EXPECT_THAT(Refusal(many), HasSubstr("accepted as"));
  AppendUtf8(0x5000, &many);
  EXPECT_EQ(Refusal(many),
            "t: the regular expression tells more than 128 kinds of characters beyond ASCII apart");
}

// Oniguruma folds strings, so that (?i:ss) matches ß, and sets of characters, so that (?i:\p{Lu})
// matches a. PCRE2 does neither.
TEST(SplitPattern, IgnoresCaseWhereTheReferenceDoesTheSame) {
  for (const char* pattern :
       {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "(?i)'s|\\s+x|[^a-z\\d]y",
        "(?i:’s|'s)|ß|ss|\\p{L}+", "(?i:s)x?(?-i:\\p{Lu}ß)", "(?i:s|s|x[s]s)"}) {
    EXPECT_THAT(Refusal(pattern), HasSubstr("accepted as")) << pattern;
  }
  EXPECT_EQ(Refusal("a(?i:xss)"),
            "t: regular expression at byte 7: \"ss\" where case is ignored is not supported");
  for (const char* pattern :
       {"(?i)ss", "(?i:Fi)", "(?i:f(?:l))", "s(?i:s)", "(?i:s)t", "(?i:s?s)"}) {
    EXPECT_THAT(Refusal(pattern), HasSubstr("where case is ignored is not supported")) << pattern;
  }
  for (const char* pattern : {"(?i:ß)", "(?i:[äöü])", "(?i:[a-ÿ])"}) {
    EXPECT_THAT(Refusal(pattern), HasSubstr("a character beyond ASCII where case is ignored"));
  }
  EXPECT_THAT(Refusal("(?i:\\p{Lu})"), HasSubstr("\\p where case is ignored"));
  EXPECT_THAT(Refusal("(?i:[\\w])"), HasSubstr("\\w where case is ignored"));
  EXPECT_THAT(Refusal("(?i:\\u00DF)"), HasSubstr("\\u where case is ignored"));
  EXPECT_THAT(Refusal("a)"), HasSubstr("at byte 1: a ) without its ("));
}

}  // namespace
}  // namespace outrider
