// Properties over random input: streams equal wholes, the two merge algorithms agree, text
// survives.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/byte_pair_encoder.h"
#include "outrider/text/stop_matcher.h"
#include "outrider/text/stream_detokenizer.h"
#include "outrider/text/tokenizer.h"
#include "outrider/text/utf8.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

const Tokenizer& Bundled() {
  static const Tokenizer* const kTokenizer =
      new Tokenizer(Tokenizer::FromModelDirectory(SourceDirectory() / "models/tiny-v3-mtp3"));
  return *kTokenizer;
}

void Check(const std::string& description, const auto& property) {
  EXPECT_TRUE(rc::check(description, property));
}

// Bytes that often form characters, and often almost do.
std::string Utf8ishBytes() {
  static const std::vector<std::string> kParts = {
      "a",    "é",    "今",   "🙂",           "\xE4", "\xBB",    "\x8A",
      "\xF0", "\x9F", "\xC0", "\xED\xA0\x80", "\xFF", "\xF4\x90"};
  std::string bytes;
  for (const auto& part :
       *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kParts))) {
    bytes += part;
  }
  return bytes;
}

// `text` cut at random places.
std::vector<std::string> Cut(const std::string& text) {
  std::vector<std::string> pieces;
  size_t position = 0;
  while (position < text.size()) {
    const auto size = static_cast<size_t>(*rc::gen::inRange<int>(1, 7));
    pieces.push_back(text.substr(position, size));
    position += pieces.back().size();
  }
  return pieces;
}

TEST(Utf8Stream, EqualsTheWholeHoweverItIsCut) {
  Check("stream == whole", [] {
    const std::string bytes = Utf8ishBytes();
    Utf8Stream stream;
    std::string streamed;
    for (const std::string& piece : Cut(bytes)) {
      stream.Push(piece, &streamed);
      RC_ASSERT(ValidUtf8Prefix(streamed) == streamed.size());
    }
    stream.Flush(&streamed);
    RC_ASSERT(streamed == ReplaceInvalidUtf8(bytes));
  });
}

TEST(Utf8, ReplacesMaximalInvalidParts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x99"), r);  // a character cut off: one
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x99z"), r + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\x80"), r + r);                  // overlong: each byte
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xBB\xE4\xBB\x8A"), r + "今");
  EXPECT_EQ(ReplaceInvalidUtf8("12345678\xFF"
                               "12345678"),
            "12345678" + r + "12345678");
}

TEST(StreamDetokenizer, EqualsDecodeOfAllIds) {
  Check("pushes + flush == Decode", [] {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::inRange<int32_t>(-2, Bundled().vocab_size() + 2));
    const bool skip = *rc::gen::arbitrary<bool>();
    StreamDetokenizer stream(Bundled(), skip);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += stream.Push(id);
      RC_ASSERT(ValidUtf8Prefix(streamed) == streamed.size());
    }
    streamed += stream.Flush();
    RC_ASSERT(streamed == Bundled().Decode(ids, skip));
  });
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  Check("Decode(Encode(text)) == text with invalid parts replaced", [] {
    const std::string text = Utf8ishBytes() + *rc::gen::string<std::string>();
    const auto ids = Bundled().Encode(text, false);
    RC_ASSERT(Bundled().Decode(ids, false) == ReplaceInvalidUtf8(text));
  });
}

TEST(BytePairEncoder, ScansAndHeapsAlike) {
  Check("EncodeByScan == EncodeByHeap", [] {
    // Random merges over three letters; every merge makes a new token or one that exists already.
    std::array<int32_t, 256> bytes{};
    for (int i = 0; i < 256; ++i) bytes.at(i) = i;
    std::vector<Merge> merges;
    int32_t next = 256;
    const int count = *rc::gen::inRange(0, 30);
    for (int i = 0; i < count; ++i) {
      const auto token = [&] {
        const int pick = *rc::gen::inRange<int>(0, next - 256 + 3);
        return pick < 3 ? 'a' + pick : 253 + pick;
      };
      const int32_t left = token();
      const int32_t right = token();
      merges.push_back({left, right, next++});
    }
    const BytePairEncoder encoder(bytes, merges);
    const auto word = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc")));
    BytePairEncoder::Workspace workspace;
    std::vector<int32_t> scan;
    std::vector<int32_t> heap;
    encoder.EncodeByScan(word, &workspace, &scan);
    encoder.EncodeByHeap(word, &workspace, &heap);
    RC_ASSERT(scan == heap);
  });
}

// What StopMatcher promises, done the slow way on the whole text.
struct Expected {
  std::string text;
  std::optional<size_t> stop;
};
Expected StopByHand(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> longest;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool here = text.substr(0, end).ends_with(stops[i]);
      if (here && (!longest || stops[i].size() > stops[*longest].size())) longest = i;
    }
    if (longest) return {text.substr(0, include ? end : end - stops[*longest].size()), longest};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, GivesTheSameResultHoweverTextIsCut) {
  Check("chunks == whole", [] {
    const auto letters = rc::gen::elementOf(std::string("aab"));
    const auto text = *rc::gen::container<std::string>(letters);
    const auto stops = *rc::gen::container<std::vector<std::string>>(
        *rc::gen::inRange<size_t>(0, 4),
        rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
    const bool include = *rc::gen::arbitrary<bool>();
    const Expected expected = StopByHand(text, stops, include);
    StopMatcher matcher(stops, include);
    std::string released;
    for (const std::string& piece : Cut(text)) {
      released += matcher.Push(piece);
      RC_ASSERT(expected.text.starts_with(released));
    }
    released += matcher.Flush();
    RC_ASSERT(released == expected.text);
    RC_ASSERT(matcher.stopped_by() == expected.stop);
  });
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
  StopMatcher matcher({"</s>", "User:"}, false);
  EXPECT_EQ(matcher.Push("Hello <"), "Hello ");
  EXPECT_EQ(matcher.Push("b> U"), "<b> ");
  EXPECT_EQ(matcher.Push("se"), "");
  EXPECT_EQ(matcher.Push("d </s"), "Used ");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("> more"), "");
  EXPECT_EQ(matcher.stopped_by(), 0U);
  EXPECT_EQ(matcher.Push("ignored"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, RefusesEmptyStops) {
  EXPECT_THROW(StopMatcher({"a", ""}, false), Error);
  StopMatcher none({}, false);
  EXPECT_EQ(none.Push("text"), "text");
  EXPECT_FALSE(none.stopped());
}

}  // namespace
}  // namespace outrider
