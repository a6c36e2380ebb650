// Makes grammars ready for a model's vocabulary, within limits of size, time and memory, and keeps
// those that were used last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "outrider/grammar/compiled_grammar.h"
#include "outrider/grammar/grammar_spec.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

struct GrammarLimits {
  size_t max_spec_bytes = size_t{1} << 18;      // of the text, or of all choices together
  size_t max_choices = 4096;                    // in one spec
  double max_seconds = 2;                       // of compiling one spec: processor time
  size_t max_compiled_bytes = size_t{1} << 28;  // of one compiled grammar
  size_t max_cached_bytes = size_t{1} << 29;    // of all that are kept without being used
};

class GrammarCompiler {
 public:
  /// `vocab_size` is the model's, at least the tokenizer's; `eos_token_ids` are never part of a
  /// text. Of special tokens only structural tags can speak. The tokenizer must outlive this.
  GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size,
                  std::span<const int32_t> eos_token_ids, const GrammarLimits& limits = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  /// The compiled grammar of a spec that was compiled lately; null if it was not. Throws as Compile
  /// does if it was refused lately. Thread-safe.
  std::shared_ptr<const CompiledGrammar> Find(const GrammarSpec& spec);

  /// Compiles, or finds. Thread-safe; takes up to limits.max_seconds, so not for the engine's
  /// thread. Throws Error (kInvalidArgument, kTooLarge) with one line that says what is wrong with
  /// the spec.
  std::shared_ptr<const CompiledGrammar> Compile(const GrammarSpec& spec);

  /// Compiles, but gives up and returns null after `seconds`, if these are fewer than are allowed,
  /// and when `cancelled` is set.
  std::shared_ptr<const CompiledGrammar> TryCompile(const GrammarSpec& spec, double seconds,
                                                    const std::atomic<bool>* cancelled = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
