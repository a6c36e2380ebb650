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
  EXPECT_EQ(cache.Find(Regex("ab")), nullptr);
  cache.Put(Regex("ab"), grammar);
  EXPECT_EQ(cache.Find(Regex("ab")), grammar);
  EXPECT_EQ(cache.Find({.kind = GrammarKind::kEbnf, .text = "ab", .choices = {}}), nullptr);
  // Choices are told apart however their texts are cut.
  cache.Put({.kind = GrammarKind::kChoice, .text = {}, .choices = {"a:1:b"}}, grammar);
  EXPECT_EQ(cache.Find({.kind = GrammarKind::kChoice, .text = {}, .choices = {"a", "b"}}), nullptr);
}

TEST(GrammarCacheTest, ForgetsTheOneUsedLongestAgo) {
  const auto grammar = CompileText(GrammarKind::kRegex, "ab");
  GrammarCache cache(3 * grammar->memory_bytes() + 200);
  for (const char* text : {"1", "2", "3"}) cache.Put(Regex(text), grammar);
  ASSERT_NE(cache.Find(Regex("1")), nullptr);
  cache.Put(Regex("4"), grammar);
  EXPECT_NE(cache.Find(Regex("1")), nullptr);
  EXPECT_EQ(cache.Find(Regex("2")), nullptr);
  EXPECT_NE(cache.Find(Regex("3")), nullptr);
  EXPECT_NE(cache.Find(Regex("4")), nullptr);
  EXPECT_LE(cache.bytes(), 3 * grammar->memory_bytes() + 200);
}

TEST(GrammarCacheTest, WhatDoesNotFitIsNotKept) {
  const auto grammar = CompileText(GrammarKind::kRegex, "ab");
  GrammarCache cache(grammar->memory_bytes());  // the text counts too
  cache.Put(Regex("ab"), grammar);
  EXPECT_EQ(cache.Find(Regex("ab")), nullptr);
  EXPECT_EQ(cache.bytes(), 0U);
}

}  // namespace
}  // namespace outrider
