#include "outrider/grammar/compiled_grammar.h"

#include <utility>

#include "outrider/grammar/compiled_grammar_impl.h"

namespace outrider {

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}

CompiledGrammar::~CompiledGrammar() = default;

int32_t CompiledGrammar::vocab_size() const {
  return impl_->grammar.GetTokenizerInfo().GetVocabSize();
}

size_t CompiledGrammar::memory_bytes() const { return impl_->grammar.MemorySizeBytes(); }

}  // namespace outrider
