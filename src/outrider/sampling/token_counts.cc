#include "outrider/sampling/token_counts.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

TokenCounts::TokenCounts(std::span<const int32_t> prompt, size_t capacity) {
  entries_.reserve(std::max(capacity, prompt.size()));
  for (const int32_t token : prompt) entries_.push_back({token, 0, true});
  const auto by_token = [](const Entry& a, const Entry& b) { return a.token < b.token; };
  std::sort(entries_.begin(), entries_.end(), by_token);
  const auto same = [](const Entry& a, const Entry& b) { return a.token == b.token; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
}

std::vector<TokenCounts::Entry>::iterator TokenCounts::Find(int32_t token) {
  return std::lower_bound(entries_.begin(), entries_.end(), token,
                          [](const Entry& entry, int32_t id) { return entry.token < id; });
}

void TokenCounts::Add(int32_t token) {
  auto it = Find(token);
  if (it == entries_.end() || it->token != token) it = entries_.insert(it, {token, 0, false});
  ++it->count;
}

void TokenCounts::Remove(int32_t token) {
  const auto it = Find(token);
  OUTRIDER_CHECK(it != entries_.end() && it->token == token && it->count > 0);
  --it->count;
  if (it->count == 0 && !it->in_prompt) entries_.erase(it);
}

}  // namespace outrider
