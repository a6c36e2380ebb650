// Follows one text through a grammar, token by token, forward and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "outrider/grammar/compiled_grammar.h"

namespace outrider {

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  /// Which tokens the text can go on with, without regard to its end: `mask` is
  /// [MaskWords(vocab)] (sampling/token_mask.h), all of it written.
  void FillMask(std::span<uint32_t> mask);

  /// Goes one token on. False, and nothing changes, when the grammar refuses it.
  bool Accept(int32_t token);

  /// Takes back the last `count` accepted tokens.
  void Rollback(int32_t count);

  /// The text so far is a whole one of the grammar.
  bool complete() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
