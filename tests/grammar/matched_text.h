// Whether a grammar takes a text of the bundled tokenizer.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "outrider/grammar/grammar_matcher.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {

/// How many bytes of `text` the grammar takes, token by token, and whether that is a whole text.
inline std::pair<size_t, bool> Follow(GrammarMatcher& matcher, std::string_view text) {
  size_t taken = 0;
  for (const int32_t token : Tokens(text)) {
    if (!matcher.Accept(token)) return {taken, false};
    taken += BundledTokenizer().TokenBytes(token).size();
  }
  return {taken, matcher.complete()};
}

inline bool Matches(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  const auto [taken, complete] = Follow(matcher, text);
  return complete && taken == text.size();
}

}  // namespace outrider
