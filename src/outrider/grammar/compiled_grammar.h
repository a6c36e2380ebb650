// A grammar made ready for one vocabulary. Immutable, shared by the requests that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace outrider {

class CompiledGrammar {
 public:
  struct Impl;

  /// GrammarCompiler makes these.
  explicit CompiledGrammar(std::unique_ptr<const Impl> impl);
  ~CompiledGrammar();
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;

  const Impl& impl() const { return *impl_; }

  /// Token ids are below this.
  int32_t vocab_size() const;

  /// About how much memory it takes.
  size_t memory_bytes() const;

 private:
  std::unique_ptr<const Impl> impl_;
};

}  // namespace outrider
