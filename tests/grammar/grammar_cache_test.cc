// Which grammars are kept, and which are forgotten.
#include "outrider/grammar/grammar_cache.h"

#include <gtest/gtest.h>

#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

GrammarSpec Regex(std::string text) {
  return {.kind = GrammarKind::kRegex, .text = std::move(text), .choices = {}};
}

TEST(GrammarCacheTest, FindsWhatWasPutAndNothingElse) {
  GrammarCache cache(size_t{1} << 30);
  const auto grammar = CompileText(GrammarKind::kRegex, "ab");
  EXPECT_FALSE(cache.Find(Regex("ab")));
  cache.Put(Regex("ab"), {grammar, std::nullopt});
  EXPECT_EQ(cache.Find(Regex("ab")).value().grammar, grammar);
  EXPECT_FALSE(cache.Find({.kind = GrammarKind::kEbnf, .text = "ab", .choices = {}}));
  // Choices are told apart however their texts are cut.
  cache.Put({.kind = GrammarKind::kChoice, .text = {}, .choices = {"a:1:b"}},
            {grammar, std::nullopt});
  EXPECT_FALSE(cache.Find({.kind = GrammarKind::kChoice, .text = {}, .choices = {"a", "b"}}));
}

TEST(GrammarCacheTest, RemembersWhyASpecIsRefused) {
  GrammarCache cache(1000);
  cache.Put(Regex("("), {nullptr, InvalidArgument("no end of the group")});
  const GrammarOutcome found = cache.Find(Regex("(")).value();
  EXPECT_EQ(found.grammar, nullptr);
  EXPECT_STREQ(found.refusal.value().what(), "no end of the group");
  EXPECT_GT(cache.bytes(), 0U);
}

TEST(GrammarCacheTest, ForgetsTheOneUsedLongestAgo) {
  const auto grammar = CompileText(GrammarKind::kRegex, "ab");
  GrammarCache cache(3 * grammar->memory_bytes() + 200);
  for (const char* text : {"1", "2", "3"}) cache.Put(Regex(text), {grammar, std::nullopt});
  ASSERT_TRUE(cache.Find(Regex("1")));
  cache.Put(Regex("4"), {grammar, std::nullopt});
  EXPECT_TRUE(cache.Find(Regex("1")));
  EXPECT_FALSE(cache.Find(Regex("2")));
  EXPECT_TRUE(cache.Find(Regex("3")));
  EXPECT_TRUE(cache.Find(Regex("4")));
  EXPECT_LE(cache.bytes(), 3 * grammar->memory_bytes() + 200);
}

TEST(GrammarCacheTest, WhatDoesNotFitIsNotKept) {
  const auto grammar = CompileText(GrammarKind::kRegex, "ab");
  GrammarCache cache(grammar->memory_bytes());  // the text counts too
  cache.Put(Regex("ab"), {grammar, std::nullopt});
  EXPECT_FALSE(cache.Find(Regex("ab")));
  EXPECT_EQ(cache.bytes(), 0U);
}

}  // namespace
}  // namespace outrider
