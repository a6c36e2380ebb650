// The bundled model's tokenizer, and grammars compiled for it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/grammar/grammar_compiler.h"
#include "tests/source_directory.h"

namespace outrider {

constexpr int32_t kBundledEos = 1;
constexpr int32_t kBundledVocab = 2048;  // the model's; the tokenizer has 1549
constexpr int32_t kBundledThinkEnd = 5;  // "</think>", a special token

inline const Tokenizer& BundledTokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::FromModelDirectory(SourceDirectory() / "models" / "tiny-v3-mtp3");
  return tokenizer;
}

inline GrammarCompiler& BundledGrammars() {
  static const std::vector<int32_t> eos = {kBundledEos};
  static GrammarCompiler compiler(BundledTokenizer(), kBundledVocab, eos);
  return compiler;
}

inline std::shared_ptr<const CompiledGrammar> CompileText(GrammarKind kind, std::string text) {
  return BundledGrammars().Compile({.kind = kind, .text = std::move(text), .choices = {}});
}

inline std::shared_ptr<const CompiledGrammar> CompileChoice(std::vector<std::string> choices) {
  return BundledGrammars().Compile(
      {.kind = GrammarKind::kChoice, .text = {}, .choices = std::move(choices)});
}

inline std::vector<int32_t> Tokens(std::string_view text) {
  return BundledTokenizer().Encode(text, /*add_special_tokens=*/false);
}

}  // namespace outrider
