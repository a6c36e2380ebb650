// Masks of verify rows: after the drafts before them, where the grammar begins, where it ends.
#include "outrider/grammar/request_grammar.h"

#include <gtest/gtest.h>

#include "outrider/sampling/token_mask.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

const std::vector<int32_t> kEos = {kBundledEos};

int32_t Token(std::string_view text) {
  const std::vector<int32_t> tokens = Tokens(text);
  EXPECT_EQ(tokens.size(), 1U) << text;
  return tokens.at(0);
}

/// The masks of the rows with these drafts, one vector a row.
std::vector<std::vector<uint32_t>> Masks(RequestGrammar& grammar,
                                         const std::vector<int32_t>& drafts) {
  const size_t words = MaskWords(kBundledVocab);
  std::vector<uint32_t> memory((drafts.size() + 1) * words, 0xDEAD);
  grammar.FillMasks(drafts, {memory.data(), static_cast<int64_t>(drafts.size()) + 1,
                             static_cast<int64_t>(words)});
  std::vector<std::vector<uint32_t>> rows;
  for (size_t j = 0; j <= drafts.size(); ++j) {
    const auto begin = memory.begin() + static_cast<std::ptrdiff_t>(j * words);
    rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(words));
  }
  return rows;
}

const std::vector<uint32_t> kEverything(MaskWords(kBundledVocab), ~uint32_t{0});

std::vector<uint32_t> EverythingBut(const std::vector<int32_t>& tokens) {
  std::vector<uint32_t> mask = kEverything;
  for (const int32_t token : tokens) SetAllowed(mask, token, false);
  return mask;
}

std::vector<int32_t> AllowedIn(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> tokens;
  for (int32_t id = 0; id < kBundledVocab; ++id) {
    if (Allows(mask, id)) tokens.push_back(id);
  }
  return tokens;
}

TEST(RequestGrammarTest, EachRowFollowsTheDraftsBeforeIt) {
  const GrammarConstraint constraint{CompileText(GrammarKind::kRegex, "a[bc]d*"), {}};
  RequestGrammar grammar(constraint, kEos, false, {});
  const int32_t a = Token("a");
  const int32_t b = Token("b");
  const int32_t d = Token("d");
  const auto rows = Masks(grammar, {a, b, d});
  EXPECT_TRUE(Allows(rows[0], a));
  EXPECT_FALSE(Allows(rows[0], b));
  EXPECT_TRUE(Allows(rows[1], b));
  EXPECT_FALSE(Allows(rows[1], d));
  EXPECT_TRUE(Allows(rows[2], d));
  EXPECT_TRUE(Allows(rows[3], d));
  // The end, only where the text is whole.
  EXPECT_FALSE(Allows(rows[1], kBundledEos));
  EXPECT_TRUE(Allows(rows[2], kBundledEos));
  EXPECT_TRUE(Allows(rows[3], kBundledEos));
  // The walk left nothing behind.
  EXPECT_EQ(Masks(grammar, {a, b, d}), rows);
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{a}));
  EXPECT_EQ(Masks(grammar, {b, d})[0], rows[1]);
  EXPECT_EQ(Masks(grammar, {b, d})[2], rows[3]);
}

TEST(RequestGrammarTest, RefusedAtRow1) {
  const GrammarConstraint constraint{CompileText(GrammarKind::kRegex, "abcd"), {}};
  RequestGrammar grammar(constraint, kEos, false, {});
  const std::vector<int32_t> drafts = {Token("a"), Token("x"), Token("c")};
  const auto rows = Masks(grammar, drafts);
  EXPECT_TRUE(Allows(rows[0], drafts[0]));
  EXPECT_FALSE(Allows(rows[1], drafts[1]));
  EXPECT_EQ(rows[2], kEverything);  // cannot come about
  EXPECT_EQ(rows[3], kEverything);
  EXPECT_EQ(grammar.CountAllowed(drafts), 1U);
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{Token("a"), Token("b")}));
  EXPECT_EQ(grammar.CountAllowed(std::vector<int32_t>{Token("c"), Token("d")}), 2U);
}

TEST(RequestGrammarTest, EndsAtRow1) {
  const GrammarConstraint constraint{CompileChoice({"a", "b"}), {}};
  RequestGrammar grammar(constraint, kEos, false, {});
  const std::vector<int32_t> drafts = {Token("a"), kBundledEos, Token("c")};
  const auto rows = Masks(grammar, drafts);
  EXPECT_EQ(AllowedIn(rows[1]), kEos);
  EXPECT_EQ(rows[2], kEverything);
  EXPECT_EQ(grammar.CountAllowed(drafts), 2U);
  EXPECT_FALSE(grammar.complete());
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{Token("a")}));
  EXPECT_TRUE(grammar.complete());
  EXPECT_EQ(AllowedIn(Masks(grammar, {})[0]), kEos);
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{kBundledEos}));
  EXPECT_TRUE(grammar.complete());
}

TEST(RequestGrammarTest, WhatEndsTheRequestIsWhatItAsksFor) {
  const GrammarConstraint constraint{CompileChoice({"a", "ab"}), {}};
  const int32_t a = Token("a");
  const int32_t b = Token("b");
  // An ignored EOS never comes.
  RequestGrammar ignoring(constraint, kEos, true, {});
  EXPECT_EQ(AllowedIn(Masks(ignoring, {a})[1]), (std::vector<int32_t>{b}));
  EXPECT_TRUE(AllowedIn(Masks(ignoring, {a, b})[2]).empty());
  // A stop token may stand where the text is whole, or where it is text.
  const std::vector<int32_t> stops = {b, kBundledThinkEnd};
  RequestGrammar stopping(constraint, kEos, true, stops);
  EXPECT_EQ(AllowedIn(Masks(stopping, {a})[1]), (std::vector<int32_t>{kBundledThinkEnd, b}));
  EXPECT_FALSE(Allows(Masks(stopping, {})[0], b));
  EXPECT_FALSE(Allows(Masks(stopping, {})[0], kBundledThinkEnd));
}

TEST(RequestGrammarTest, BeginsAfterTheEndOfThinkingInsideTheWindow) {
  const GrammarConstraint constraint{CompileText(GrammarKind::kRegex, "ab"), {kBundledThinkEnd}};
  RequestGrammar grammar(constraint, kEos, false, {});
  const int32_t a = Token("a");
  const int32_t x = Token("x");
  const auto rows = Masks(grammar, {x, kBundledThinkEnd, a});
  EXPECT_EQ(rows[0], EverythingBut(kEos));
  EXPECT_EQ(rows[1], EverythingBut(kEos));
  EXPECT_TRUE(Allows(rows[2], a));
  EXPECT_FALSE(Allows(rows[2], x));
  EXPECT_EQ(AllowedIn(rows[3]), (std::vector<int32_t>{Token("b")}));
  EXPECT_EQ(grammar.CountAllowed(std::vector<int32_t>{x, kBundledThinkEnd, x}), 2U);
  // The thinking ends only when its end is emitted.
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{x, x}));
  EXPECT_EQ(Masks(grammar, {})[0], EverythingBut(kEos));
  EXPECT_FALSE(grammar.complete());
  EXPECT_TRUE(grammar.Advance(std::vector<int32_t>{kBundledThinkEnd}));
  EXPECT_EQ(Masks(grammar, {})[0], rows[2]);
}

TEST(RequestGrammarTest, AnEndOfSeveralTokensThatOverlapsItself) {
  const int32_t p = Token("p");
  const int32_t q = Token("q");
  const GrammarConstraint constraint{CompileText(GrammarKind::kRegex, "ab"), {p, q, p, p}};
  const auto begins_after = [&](const std::vector<int32_t>& tokens) {
    RequestGrammar grammar(constraint, kEos, false, {});
    EXPECT_TRUE(grammar.Advance(tokens));
    return Masks(grammar, {})[0] != EverythingBut(kEos);
  };
  EXPECT_TRUE(begins_after({p, q, p, p}));
  EXPECT_TRUE(begins_after({p, q, p, q, p, p}));
  EXPECT_TRUE(begins_after({p, p, q, p, p}));
  EXPECT_FALSE(begins_after({p, q, p, q, p}));
  EXPECT_FALSE(begins_after({q, p, p}));
}

// What no mask would let through is told, and ends nothing but the request.
TEST(RequestGrammarTest, TellsOfATokenThatTheGrammarRefuses) {
  const GrammarConstraint constraint{CompileText(GrammarKind::kRegex, "ab"), {}};
  RequestGrammar grammar(constraint, kEos, false, {});
  EXPECT_FALSE(grammar.Advance(std::vector<int32_t>{Token("a"), Token("x")}));
  RequestGrammar whole(constraint, kEos, false, {});
  EXPECT_FALSE(whole.Advance(std::vector<int32_t>{kBundledEos}));
}

// An answer that ends while the model thinks would be empty.
TEST(RequestGrammarTest, NothingEndsTheRequestBeforeTheGrammarBegins) {
  const int32_t stop = Token("s");
  const int32_t call = Token("c");
  const std::vector<int32_t> stops = {stop, kBundledThinkEnd};
  const GrammarConstraint constraint{
      CompileText(GrammarKind::kRegex, "ab"), {kBundledThinkEnd}, {call}};
  for (const bool ignore_eos : {false, true}) {
    RequestGrammar grammar(constraint, kEos, ignore_eos, stops);
    for (const int32_t token : {kBundledEos, stop, call}) {
      const std::vector<int32_t> drafts = {Token("x"), token, Token("x")};
      EXPECT_EQ(grammar.CountAllowed(drafts), 1U);
      const auto rows = Masks(grammar, drafts);
      EXPECT_EQ(rows[0], EverythingBut({kBundledEos, stop, call}));
      EXPECT_EQ(rows[1], rows[0]);
      EXPECT_EQ(rows[2], kEverything);  // cannot come about
    }
    // The end of the thinking may be a stop token itself.
    EXPECT_EQ(grammar.CountAllowed(std::vector<int32_t>{kBundledThinkEnd, Token("a")}), 1U);
  }
}

}  // namespace
}  // namespace outrider
