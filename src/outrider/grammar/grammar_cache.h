// What came of specs that were compiled: grammars, and why others are refused. Over the byte bound,
// those used longest ago are forgotten. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "outrider/base/error.h"
#include "outrider/grammar/compiled_grammar.h"
#include "outrider/grammar/grammar_spec.h"

namespace outrider {

/// One of the two.
struct GrammarOutcome {
  std::shared_ptr<const CompiledGrammar> grammar;
  std::optional<Error> refusal;
};

class GrammarCache {
 public:
  /// Counts the grammars' memory and their specs' text.
  explicit GrammarCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Nothing when it is not there.
  std::optional<GrammarOutcome> Find(const GrammarSpec& spec);

  /// Keeps what fits alone.
  void Put(const GrammarSpec& spec, GrammarOutcome outcome);

  size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    GrammarOutcome outcome;
    size_t bytes = 0;
  };

  size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  size_t bytes_ = 0;
};

}  // namespace outrider
