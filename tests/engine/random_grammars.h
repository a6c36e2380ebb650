// Grammars for random requests, over the bundled tokenizer.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "outrider/engine/generation.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {

/// Compiled for a model with `vocab_size` tokens.
inline std::vector<std::shared_ptr<const CompiledGrammar>> CompileAll(int32_t vocab_size) {
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler compiler(BundledTokenizer(), vocab_size, eos);
  std::vector<std::shared_ptr<const CompiledGrammar>> grammars;
  const std::vector<GrammarSpec> specs = {
      {GrammarKind::kJsonObject, "", {}},
      {GrammarKind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array",
           "items":{"type":"number"},"minItems":1}},"required":["a","b"]})",
       {}},
      {GrammarKind::kRegex, "[a-z]{1,3}( [a-z]+)*[.]", {}},
      {GrammarKind::kRegex, "(.|\\n){0,12}", {}},  // nearly everything, then the end
      {GrammarKind::kChoice, "", {"yes", "yes, please", "no", "none of these"}},
      {GrammarKind::kEbnf, R"(root ::= "<" (root | [^<>]*) ">")", {}},
      {GrammarKind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["a"],"tags":
           [{"begin":"a","content":{"type":"regex","pattern":"[0-9]+"},"end":"."}]}})",
       {}},
  };
  for (const GrammarSpec& spec : specs) grammars.push_back(compiler.Compile(spec));
  return grammars;
}

/// Gives some of the requests a grammar, some of these only after certain tokens.
inline void AddGrammars(uint32_t seed, int32_t vocab_size,
                        std::vector<GenerationRequest>& requests) {
  static std::map<int32_t, std::vector<std::shared_ptr<const CompiledGrammar>>> compiled;
  auto& grammars = compiled[vocab_size];
  if (grammars.empty()) grammars = CompileAll(vocab_size);
  std::mt19937 random(seed);
  for (GenerationRequest& request : requests) {
    if (random() % 3 != 0) continue;
    request.grammar.grammar = grammars[random() % grammars.size()];
    if (random() % 4 != 0) continue;
    for (size_t n = 1 + random() % 2; n > 0; --n) {
      const auto& prompt = request.prompt_token_ids;
      request.grammar.start_after.push_back(prompt[random() % prompt.size()]);
    }
  }
}

}  // namespace outrider
