#include "outrider/engine/kv_events.h"

#include <algorithm>
#include <utility>

namespace outrider {

namespace {

uint64_t HashOf(const BlockKey& key) {
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof hash; ++i) hash = hash << 8 | key[i];
  return hash;
}

}  // namespace

void KvEventLog::Forget(const BlockPoolEvent& event) {
  if (event.kind == BlockPoolEvent::Kind::kCleared) {
    told_.clear();
    events_.emplace_back().kind = KvEvent::Kind::kCleared;
    return;
  }
  const uint64_t hash = HashOf(event.key);
  if (told_.erase(hash) == 0) return;  // of another group
  if (events_.empty() || events_.back().kind != KvEvent::Kind::kRemoved) {
    events_.emplace_back().kind = KvEvent::Kind::kRemoved;
  }
  events_.back().hashes.push_back(hash);
}

void KvEventLog::Store(size_t block, const Writer& writer) {
  const auto& [tokens, keys, cache_salt] = writer;
  const uint64_t hash = HashOf(keys.blocks[block]);
  std::optional<uint64_t> parent;
  if (block > 0) parent = HashOf(keys.blocks[block - 1]);
  const bool goes_on = !events_.empty() && events_.back().kind == KvEvent::Kind::kStored &&
                       parent && events_.back().hashes.back() == *parent &&
                       events_.back().cache_salt == cache_salt;
  if (!goes_on) {
    events_.push_back({.kind = KvEvent::Kind::kStored,
                       .hashes = {},
                       .parent = parent,
                       .token_ids = {},
                       .block_size = block_size_,
                       .cache_salt = cache_salt});
  }
  KvEvent& event = events_.back();
  event.hashes.push_back(hash);
  const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(block) * block_size_;
  event.token_ids.insert(event.token_ids.end(), first, first + block_size_);
  told_.insert(hash);
}

void KvEventLog::TakePublished(std::span<const Writer> writers) {
  // Blocks of a request are published in order, those of one request after those of another.
  std::vector<size_t> next(writers.size(), 0);
  for (const BlockPoolEvent& event : pool_log_) {
    if (event.kind != BlockPoolEvent::Kind::kStored) {
      Forget(event);
      continue;
    }
    for (size_t w = 0; w < writers.size(); ++w) {
      const std::vector<BlockKey>& keys = writers[w].keys.blocks;
      const auto found =
          std::find(keys.begin() + static_cast<std::ptrdiff_t>(next[w]), keys.end(), event.key);
      if (found == keys.end()) continue;  // of another group, or another request
      next[w] = static_cast<size_t>(found - keys.begin()) + 1;
      Store(next[w] - 1, writers[w]);
      break;
    }
  }
  pool_log_.clear();
}

std::vector<KvEvent> KvEventLog::TakeEvents() {
  // What was stored was taken with its tokens.
  for (const BlockPoolEvent& event : pool_log_) {
    if (event.kind != BlockPoolEvent::Kind::kStored) Forget(event);
  }
  pool_log_.clear();
  return std::exchange(events_, {});
}

}  // namespace outrider
