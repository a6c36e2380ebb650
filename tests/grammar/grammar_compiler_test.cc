// What is refused, with what words; what is kept.
#include "outrider/grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "outrider/base/error.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/grammar/matched_text.h"

namespace outrider {
namespace {

using testing::HasSubstr;

std::string ErrorOf(GrammarCompiler& compiler, const GrammarSpec& spec) {
  try {
    compiler.Compile(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find("heck failed"), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

std::string ErrorOf(GrammarKind kind, std::string text) {
  return ErrorOf(BundledGrammars(), {.kind = kind, .text = std::move(text), .choices = {}});
}

TEST(GrammarCompilerTest, SaysWhatIsWrong) {
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {GrammarKind::kJsonSchema, R"({"type": "nothing"})"},
           {GrammarKind::kJsonSchema, R"({"type": "obj)"},
           {GrammarKind::kJsonSchema, R"({"$ref": "#/nowhere"})"},
           {GrammarKind::kJsonSchema, "[1]"},
           {GrammarKind::kJsonSchema, "false"},
           {GrammarKind::kRegex, "a("},
           {GrammarKind::kRegex, "[z-a]"},
           {GrammarKind::kRegex, "a{3,1}"},
           {GrammarKind::kEbnf, "root := 1"},
           {GrammarKind::kEbnf, R"(start ::= "a")"},
           {GrammarKind::kEbnf, "root ::= nowhere"},
           {GrammarKind::kEbnf, ""},
           {GrammarKind::kStructuralTag, "{}"},
           {GrammarKind::kStructuralTag, "x"},
           {GrammarKind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"what"}})"},
       }) {
    const std::string error = ErrorOf(kind, text);
    EXPECT_NE(error, "no error") << "kind " << static_cast<int>(kind) << " " << text;
    EXPECT_GT(error.size(), 5U);
  }
}

// As Kimi's: the model has no rows for the tokenizer's last ids.
TEST(GrammarCompilerTest, TheTokenizerMayHaveMoreTokensThanTheModel) {
  const std::vector<int32_t> eos = {kBundledEos, BundledTokenizer().vocab_size() - 1};
  const int32_t vocab = BundledTokenizer().vocab_size() - 2;
  GrammarCompiler compiler(BundledTokenizer(), vocab, eos);
  const auto grammar =
      compiler.Compile({.kind = GrammarKind::kRegex, .text = "[a-c]{3}", .choices = {}});
  EXPECT_EQ(grammar->vocab_size(), vocab);
}

// What xgrammar would read as something else, and only warn of.
TEST(GrammarCompilerTest, RefusesWhatWouldBeIgnored) {
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, "a^b"), HasSubstr("an anchor in the middle"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, R"(\Aab)"),
              HasSubstr("the escape \\A is not supported"));
  EXPECT_EQ(ErrorOf(GrammarKind::kRegex, R"(\"a\_b\@\ \é\")"), "no error");
}

TEST(GrammarCompilerTest, RefusesWhatCountsOrHeats) {
  EXPECT_THAT(ErrorOf(GrammarKind::kEbnf, R"(root ::= a
a[max_tokens=3] ::= [a-z]*)"),
              HasSubstr("max_tokens is not supported"));
  EXPECT_THAT(ErrorOf(GrammarKind::kEbnf, R"(root ::= a
a[temperature=0.5] ::= [a-z]*)"),
              HasSubstr("temperature is not supported"));
  EXPECT_EQ(ErrorOf(GrammarKind::kEbnf, R"(root ::= "a[max_tokens=3] ::= ")"), "no error");
}

TEST(GrammarCompilerTest, LimitsOfSize) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler small(BundledTokenizer(), kBundledVocab, eos,
                        {.max_spec_bytes = 20, .max_choices = 3});
  EXPECT_THAT(
      ErrorOf(small, {.kind = GrammarKind::kRegex, .text = std::string(21, 'a'), .choices = {}}),
      HasSubstr("has 21 bytes; at most 20 are allowed"));
  EXPECT_EQ(
      ErrorOf(small, {.kind = GrammarKind::kRegex, .text = std::string(20, 'a'), .choices = {}}),
      "no error");
  EXPECT_THAT(
      ErrorOf(small, {.kind = GrammarKind::kChoice, .text = {}, .choices = {"a", "b", "c", "d"}}),
      HasSubstr("has 4 choices; at most 3 are allowed"));
  EXPECT_THAT(ErrorOf(small, {.kind = GrammarKind::kChoice, .text = {}, .choices = {}}),
              HasSubstr("has no choices"));
  GrammarCompiler tight(BundledTokenizer(), kBundledVocab, eos, {.max_compiled_bytes = 1000});
  EXPECT_THAT(ErrorOf(tight, {.kind = GrammarKind::kJsonObject, .text = {}, .choices = {}}),
              HasSubstr("too large"));
}

TEST(GrammarCompilerTest, LimitOfTime) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler hasty(BundledTokenizer(), kBundledVocab, eos, {.max_seconds = 1e-9});
  EXPECT_THAT(ErrorOf(hasty, {.kind = GrammarKind::kJsonObject, .text = {}, .choices = {}}),
              HasSubstr("to compile: make it simpler"));
  EXPECT_EQ(ErrorOf(GrammarKind::kRegex, "no limit is left behind"), "no error");
}

TEST(GrammarCompilerTest, RemembersRefusals) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos);
  const GrammarSpec wrong{.kind = GrammarKind::kRegex, .text = "(a", .choices = {}};
  EXPECT_EQ(compiler.Find(wrong), nullptr);
  const std::string error = ErrorOf(compiler, wrong);
  EXPECT_NE(error, "no error");
  std::string found = "not found";
  try {
    compiler.Find(wrong);
  } catch (const Error& refusal) {
    found = refusal.what();
  }
  EXPECT_EQ(found, error);
  EXPECT_EQ(ErrorOf(compiler, wrong), error);
}

// What takes longer than it is given now is not refused for that.
TEST(GrammarCompilerTest, MayBeTriedForAShortTime) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos);
  const GrammarSpec spec{.kind = GrammarKind::kJsonObject, .text = {}, .choices = {}};
  EXPECT_EQ(compiler.TryCompile(spec, 1e-9), nullptr);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(compiler.TryCompile(spec, 100, &cancelled), nullptr);
  EXPECT_EQ(compiler.Find(spec), nullptr);
  EXPECT_NE(compiler.TryCompile(spec, 100), nullptr);
  EXPECT_NE(compiler.Find(spec), nullptr);
}

TEST(GrammarCompilerTest, FindsWhatItCompiled) {
  const GrammarSpec spec{.kind = GrammarKind::kRegex, .text = "find me [0-9]", .choices = {}};
  EXPECT_EQ(BundledGrammars().Find(spec), nullptr);
  const auto compiled = BundledGrammars().Compile(spec);
  EXPECT_EQ(BundledGrammars().Find(spec), compiled);
  EXPECT_EQ(BundledGrammars().Compile(spec), compiled);
  EXPECT_EQ(compiled->vocab_size(), kBundledVocab);
}

// Two threads may compile a spec at once: one grammar is kept, and both say what the spec says.
TEST(GrammarCompilerTest, ThreadsMayCompileAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 6;
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos);
  const GrammarSpec tag{.kind = GrammarKind::kStructuralTag,
                        .text = R"({"type":"structural_tag","format":{"type":"any_text"}})",
                        .choices = {}};
  const auto letters = [](int count) {
    return GrammarSpec{.kind = GrammarKind::kRegex,
                       .text = std::string(static_cast<size_t>(count), 'a'),
                       .choices = {}};
  };
  std::vector<std::vector<std::shared_ptr<const CompiledGrammar>>> tags(kThreads);
  auto texts = tags;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        texts[t].push_back(compiler.Compile(letters(1 + i + static_cast<int>(t))));
        tags[t].push_back(compiler.Compile(tag));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto kept = compiler.Find(tag);
  ASSERT_NE(kept, nullptr);
  for (size_t t = 0; t < kThreads; ++t) {
    ASSERT_NE(tags[t].front(), nullptr);
    EXPECT_EQ(tags[t].front()->memory_bytes(), kept->memory_bytes());
    for (size_t i = 0; i < kRounds; ++i) {
      if (i > 0) {
        EXPECT_EQ(tags[t][i], kept) << "thread " << t << " round " << i;
      }
      const auto length = 1 + i + t;
      ASSERT_NE(texts[t][i], nullptr);
      EXPECT_TRUE(Matches(texts[t][i], std::string(length, 'a'))) << length;
      EXPECT_FALSE(Matches(texts[t][i], std::string(length + 1, 'a'))) << length;
      EXPECT_FALSE(Matches(texts[t][i], std::string(length - 1, 'a'))) << length;
    }
  }
}

}  // namespace
}  // namespace outrider
