// What each kind of grammar lets through; masks and acceptance say the same.
#include "outrider/grammar/grammar_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/sampling/token_mask.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/grammar/matched_text.h"

namespace outrider {
namespace {

TEST(GrammarMatcherTest, JsonObject) {
  const auto grammar = CompileText(GrammarKind::kJsonObject, "");
  EXPECT_TRUE(Matches(grammar, "{}"));
  EXPECT_TRUE(Matches(grammar, R"({"a": [1, {"b": null}], "c": "\u00e9 é"})"));
  EXPECT_TRUE(Matches(grammar, "{\n  \"a\" : -1.5e3\n}"));
  EXPECT_FALSE(Matches(grammar, R"({"a": )"));
  EXPECT_FALSE(Matches(grammar, R"({a: 1})"));
  EXPECT_FALSE(Matches(grammar, "[1]"));
  EXPECT_FALSE(Matches(grammar, "7"));
  EXPECT_FALSE(Matches(grammar, "{} x"));
  const std::string white(24, ' ');
  EXPECT_TRUE(Matches(grammar, "{" + white + "}"));
  EXPECT_FALSE(Matches(grammar, "{" + white + " }")) << "whitespace has an end";
}

// Whatever a schema says of a string, control characters come escaped only: JSON has no others.
TEST(GrammarMatcherTest, StringsHaveNoControlCharacters) {
  for (const char* schema : {R"({"type": "string"})", R"({"type": "string", "maxLength": 5})",
                             R"({"type": "string", "minLength": 1})",
                             R"({"type": "string", "minLength": 2, "maxLength": 9})",
                             R"({"type": "string", "pattern": "^.{3}$"})",
                             R"({"type": "string", "pattern": "[^x]{3}"})"}) {
    const auto grammar = CompileText(GrammarKind::kJsonSchema, schema);
    EXPECT_TRUE(Matches(grammar, "\"abc\"")) << schema;
    EXPECT_TRUE(Matches(grammar,
                        "\"a\xc3\xa9"
                        "c\""))
        << schema;
    for (char control = 0; control < 0x20; ++control) {
      EXPECT_FALSE(Matches(grammar, std::string("\"a") + control + "c\""))
          << schema << " character " << static_cast<int>(control);
    }
    EXPECT_FALSE(Matches(grammar, "\"a\"c\"")) << schema;
  }
}

TEST(GrammarMatcherTest, PatternsMatchAnywhere) {
  for (const auto& [pattern, good, bad] : std::vector<std::array<const char*, 3>>{
           {"\\\\S", "a b", " "},
           {"ab", "xaby", "a b"},
           {"^ab", "aby", "xab"},
           {"ab$", "xab", "aby"},
           {"^ab$", "ab", "abab"},
           {"^a|b$", "xb", "xa"},
           {"[0-9]{2}", "a12b", "a1b2"},
       }) {
    const auto grammar = CompileText(
        GrammarKind::kJsonSchema, std::string(R"({"type":"string","pattern":")") + pattern + "\"}");
    EXPECT_TRUE(Matches(grammar, std::string("\"") + good + '"')) << pattern;
    EXPECT_FALSE(Matches(grammar, std::string("\"") + bad + '"')) << pattern;
  }
}

TEST(GrammarMatcherTest, ExpressionsAreEcmaScripts) {
  const auto matches = [](const char* expression, std::string_view text) {
    return Matches(CompileText(GrammarKind::kRegex, expression), std::string(text));
  };
  for (const char* text : {"a", " ", "]", "\t", "\xc3\xa9", "\""}) EXPECT_TRUE(matches(".", text));
  for (const char* text : {"\n", "\r", "\xe2\x80\xa8", "ab", ""}) EXPECT_FALSE(matches(".", text));
  EXPECT_TRUE(matches("[^]", "\n"));
  EXPECT_TRUE(matches("[^]a]", "xa]"));
  EXPECT_FALSE(matches("[^]a]", "x"));
  EXPECT_TRUE(matches("[\\]a]", "]"));
  EXPECT_FALSE(matches("[^\\]a]", "]"));
  EXPECT_TRUE(matches("a\\\\\"b", "a\\\"b"));
  EXPECT_TRUE(matches("^a.*c$", "abbc"));
  EXPECT_FALSE(matches("^a.*c$", "ab\nc"));
}

// One spelling: no line ends, a space after each comma and colon, as vLLM has it.
TEST(GrammarMatcherTest, CompactJsonHasNoOtherWhiteSpace) {
  const char* const schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},
          "b":{"type":"array","items":{"type":"integer"}}},"required":["a","b"]})";
  for (const GrammarKind kind : {GrammarKind::kJsonSchema, GrammarKind::kJsonObject}) {
    GrammarSpec spec{.kind = kind, .text = schema, .choices = {}};
    if (kind == GrammarKind::kJsonObject) spec.text.clear();
    EXPECT_TRUE(Matches(BundledGrammars().Compile(spec), R"({"a":1,"b":[1,2]})"));
    spec.compact = true;
    const auto compact = BundledGrammars().Compile(spec);
    EXPECT_TRUE(Matches(compact, R"({"a": 1, "b": [1, 2]})"));
    for (const char* text :
         {R"({"a":  1, "b": [1, 2]})", R"({"a": 1,  "b": [1, 2]})", R"({"a": 1, "b": [1,  2]})",
          "{\"a\": 1, \"b\": [1, 2]\n}", R"({ "a": 1, "b": [1, 2]})"}) {
      EXPECT_FALSE(Matches(compact, text)) << text;
    }
  }
}

TEST(GrammarMatcherTest, JsonSchema) {
  const auto grammar = CompileText(GrammarKind::kJsonSchema, R"({
    "type": "object",
    "properties": {
      "zulu": {"type": "integer"},
      "alpha": {"enum": ["x", "y"]},
      "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
    },
    "required": ["zulu", "alpha"]
  })");
  EXPECT_TRUE(Matches(grammar, R"({"zulu": 12, "alpha": "x"})"));
  EXPECT_TRUE(Matches(grammar, R"({"zulu": 12, "alpha": "y", "list": [true, false]})"));
  EXPECT_FALSE(Matches(grammar, R"({"alpha": "x", "zulu": 12})")) << "members in schema order";
  EXPECT_FALSE(Matches(grammar, R"({"zulu": 12, "alpha": "x", "other": 1})"));
  EXPECT_FALSE(Matches(grammar, R"({"zulu": 12})"));
  EXPECT_FALSE(Matches(grammar, R"({"zulu": "12", "alpha": "x"})"));
  EXPECT_FALSE(Matches(grammar, R"({"zulu": 1, "alpha": "x", "list": [true, true, true]})"));
}

TEST(GrammarMatcherTest, Regex) {
  const auto grammar = CompileText(GrammarKind::kRegex, R"([0-9]{2,4} (apples|keys)!?)");
  EXPECT_TRUE(Matches(grammar, "12 apples"));
  EXPECT_TRUE(Matches(grammar, "1234 keys!"));
  EXPECT_FALSE(Matches(grammar, "1 apples"));
  EXPECT_FALSE(Matches(grammar, "12345 apples"));
  EXPECT_FALSE(Matches(grammar, "x12 apples"));
  EXPECT_FALSE(Matches(grammar, "12 apples!!"));
}

TEST(GrammarMatcherTest, ChoicesHoldAnyCharacters) {
  const std::vector<std::string> choices = {"yes",          "no",        "a \"quoted\" \\ one",
                                            "two\nlines\t", "über 東京", "[a-z]|x"};
  const auto grammar = CompileChoice(choices);
  for (const std::string& choice : choices) EXPECT_TRUE(Matches(grammar, choice)) << choice;
  for (const char* other : {"", "yesno", "ye", "b", "u"}) {
    EXPECT_FALSE(Matches(grammar, other)) << other;
  }
}

TEST(GrammarMatcherTest, Ebnf) {
  const auto grammar = CompileText(GrammarKind::kEbnf, R"ebnf(root ::= "(" root ")" | [a-c]+)ebnf");
  EXPECT_TRUE(Matches(grammar, "((abc))"));
  EXPECT_FALSE(Matches(grammar, "((abc)"));
  EXPECT_FALSE(Matches(grammar, "((abd))"));
}

TEST(GrammarMatcherTest, StructuralTagIsFreeOutsideItsTags) {
  const auto grammar = CompileText(GrammarKind::kStructuralTag, R"({
    "type": "structural_tag",
    "format": {
      "type": "triggered_tags",
      "triggers": ["<call"],
      "tags": [{"begin": "<call>", "content": {"type": "json_schema", "json_schema":
                {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
                "end": "</call>"}]
    }
  })");
  EXPECT_TRUE(Matches(grammar, "any text at all"));
  EXPECT_TRUE(Matches(grammar, R"(now <call>{"n": 3}</call> and then)"));
  EXPECT_FALSE(Matches(grammar, R"(now <call>{"m": 3}</call>)"));
  EXPECT_FALSE(Matches(grammar, R"(now <call>{"n": 3})"));
}

TEST(GrammarMatcherTest, SpecialTokensAreTextInStructuralTagsOnly) {
  const auto any = CompileText(GrammarKind::kRegex, "[^x]*");
  const auto tags = CompileText(GrammarKind::kStructuralTag, R"({
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "</think>", "content": {"type": "regex", "pattern": "[ab]+"},
               "end": "."}
  })");
  GrammarMatcher plain(any);
  EXPECT_FALSE(plain.Accept(kBundledThinkEnd));
  GrammarMatcher tagged(tags);
  EXPECT_TRUE(tagged.Accept(kBundledThinkEnd));
  EXPECT_EQ(Follow(tagged, "ab.").second, true);
  std::vector<uint32_t> mask(MaskWords(kBundledVocab));
  plain.FillMask(mask);
  for (int32_t id = 0; id < 6; ++id) EXPECT_FALSE(Allows(mask, id)) << id;
  for (int32_t id = BundledTokenizer().vocab_size(); id < kBundledVocab; ++id) {
    EXPECT_FALSE(Allows(mask, id)) << id;
  }
}

TEST(GrammarMatcherTest, TokensThatSplitACharacter) {
  // The bundled tokenizer spells rare characters in bytes.
  const auto grammar = CompileChoice({"鱼"});
  const std::vector<int32_t> tokens = Tokens("鱼");
  ASSERT_GT(tokens.size(), 1U);
  EXPECT_TRUE(Matches(grammar, "鱼"));
}

// Random walks: what a mask allows is accepted, what it forbids is not, and rolling back leads to
// the mask that was there before.
TEST(GrammarMatcherTest, MasksAgreeWithAcceptanceAndRollback) {
  const std::vector<std::shared_ptr<const CompiledGrammar>> grammars = {
      CompileText(GrammarKind::kJsonObject, ""),
      CompileText(GrammarKind::kJsonSchema,
                  R"({"type":"object","properties":{"a":{"type":"string","maxLength":5},
                      "b":{"type":"array","items":{"type":"number"}}},"required":["a"]})"),
      CompileText(GrammarKind::kRegex, R"((\w+ ){1,3}[0-9]+(\.[0-9]{2})?)"),
      CompileText(GrammarKind::kEbnf, R"ebnf(root ::= "(" root ")" | [a-c]+ | "é" root)ebnf"),
      CompileChoice({"one", "ones", "two"})};
  std::mt19937 random(3);
  const size_t words = MaskWords(kBundledVocab);
  for (size_t g = 0; g < grammars.size(); ++g) {
    for (int walk = 0; walk < 6; ++walk) {
      GrammarMatcher matcher(grammars[g]);
      std::vector<std::vector<uint32_t>> masks;  // after 0, 1, 2, ... tokens
      for (;;) {
        std::vector<uint32_t>& mask = masks.emplace_back(words);
        matcher.FillMask(mask);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < kBundledVocab; ++id) {
          if (Allows(mask, id)) allowed.push_back(id);
        }
        for (int probe = 0; probe < 30; ++probe) {
          const auto id = static_cast<int32_t>(random() % kBundledVocab);
          const bool accepted = matcher.Accept(id);
          ASSERT_EQ(accepted, Allows(mask, id)) << "grammar " << g << " token " << id;
          if (accepted) matcher.Rollback(1);
        }
        if (allowed.empty() || masks.size() == 40) break;
        ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()]));
      }
      while (masks.size() > 1) {
        const size_t back = 1 + random() % std::min<size_t>(4, masks.size() - 1);
        matcher.Rollback(static_cast<int32_t>(back));
        masks.resize(masks.size() - back);
        std::vector<uint32_t> mask(words);
        matcher.FillMask(mask);
        ASSERT_EQ(mask, masks.back()) << "grammar " << g << " after " << masks.size() - 1;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
