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
#include "tests/source_directory.h"

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

/// All characters, one after the other.
struct AllCharacters {
  AllCharacters() {
    for (uint32_t c = 0; c < kEnd; ++c) {
      offsets[c] = static_cast<uint32_t>(text.size());
      if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, &text);
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

// The library knows a later Unicode than PCRE2: characters that PCRE2 takes for unassigned may
// differ, and one vowel sign whose category was changed.
TEST(SplitPattern, TakesPropertiesForTheCharactersThatTheReferenceTakes) {
  std::ifstream file(SourceDirectory() / "tests/text/golden/unicode_properties.json");
  const nlohmann::json properties = nlohmann::json::parse(file);
  ASSERT_EQ(properties.size(), 69U);
  const std::vector<bool> unassigned = Matched("\\p{Cn}");
  for (const auto& [pattern, ranges] : properties.items()) {
    std::vector<bool> expected(kEnd, false);
    for (size_t i = 0; i < ranges.size(); i += 2) {
      std::fill(expected.begin() + ranges[i].get<int>(),
                expected.begin() + ranges[i + 1].get<int>() + 1, true);
    }
    const std::vector<bool> matched = Matched(pattern);
    std::vector<uint32_t> different;
    for (uint32_t c = 0; c < kEnd; ++c) {
      const bool surrogate = c >= 0xD800 && c < 0xE000;  // no characters
      if (matched[c] != expected[c] && !unassigned[c] && !surrogate && c != 0x1171E) {
        different.push_back(c);
      }
    }
    EXPECT_THAT(different, testing::IsEmpty()) << pattern;
  }
}

std::string Refusal(const std::string& pattern) {
  try {
    return "accepted as " + TranslateSplitPattern(pattern, "t");
  } catch (const Error& error) {
    return error.what();
  }
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
