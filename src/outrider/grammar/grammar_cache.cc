#include "outrider/grammar/grammar_cache.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace outrider {

namespace {

/// Different for different specs: lengths stand before texts.
std::string Key(const GrammarSpec& spec) {
  std::string key =
      fmt::format("{}:{}:{}:{}:{}:{}", static_cast<int>(spec.kind), spec.compact ? 1 : 0,
                  spec.calls.size(), spec.calls, spec.text.size(), spec.text);
  for (const std::string& choice : spec.choices) {
    key += fmt::format(":{}:{}", choice.size(), choice);
  }
  return key;
}

}  // namespace

std::optional<GrammarOutcome> GrammarCache::Find(const GrammarSpec& spec) {
  const std::string key = Key(spec);
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().outcome;
}

void GrammarCache::Put(const GrammarSpec& spec, GrammarOutcome outcome) {
  std::string key = Key(spec);
  const size_t bytes = 2 * key.size() + (outcome.grammar ? outcome.grammar->memory_bytes()
                                                         : std::strlen(outcome.refusal->what()));
  const std::lock_guard lock(mutex_);
  if (bytes > max_bytes_ || by_key_.contains(key)) return;
  entries_.push_front({key, std::move(outcome), bytes});
  by_key_.emplace(std::move(key), entries_.begin());
  bytes_ += bytes;
  while (bytes_ > max_bytes_) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

size_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace outrider
