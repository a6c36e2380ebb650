// Compiled grammars by what they were compiled from; over the byte bound, those used longest ago
// are forgotten. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "outrider/grammar/compiled_grammar.h"
#include "outrider/grammar/grammar_spec.h"

namespace outrider {

class GrammarCache {
 public:
  /// Counts the grammars' memory and their specs' text.
  explicit GrammarCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Null when it is not there.
  std::shared_ptr<const CompiledGrammar> Find(const GrammarSpec& spec);

  /// Keeps a grammar that fits alone.
  void Put(const GrammarSpec& spec, std::shared_ptr<const CompiledGrammar> grammar);

  size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
    size_t bytes = 0;
  };

  size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  size_t bytes_ = 0;
};

}  // namespace outrider
