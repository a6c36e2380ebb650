#include "outrider/kv/cache_coordinator.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

CacheCoordinator::CacheCoordinator(CacheConfig config, const RankPlace& place)
    : config_(std::move(config)), pool_(config_.num_pages, place) {
  config_.Check();
}

CacheTables CacheCoordinator::MakeTables(int32_t max_tokens) const {
  CacheTables tables;
  tables.blocks_.resize(config_.groups.size());
  tables.num_left_.resize(config_.groups.size(), 0);
  for (size_t g = 0; g < config_.groups.size(); ++g) {
    const int32_t blocks = config_.groups[g].BlocksBefore(max_tokens);
    tables.blocks_[g].reserve(static_cast<size_t>(blocks));
  }
  return tables;
}

BlockKey CacheCoordinator::KeyOf(int32_t group, std::span<const BlockKey> keys,
                                 int32_t block) const {
  const int32_t end = (block + 1) * config_.groups[static_cast<size_t>(group)].tokens_per_block;
  BlockKey key = keys[static_cast<size_t>(end / config_.TokensPerKey() - 1)];
  // Blocks of two groups may end at the same token.
  key.back() = static_cast<uint8_t>(key.back() ^ group);
  return key;
}

bool CacheCoordinator::IsReadBehind(int32_t group, int32_t block) const {
  const CacheGroupSpec& spec = config_.groups[static_cast<size_t>(group)];
  const int32_t resume = config_.TokensPerResume();
  const int32_t end = (block + 1) * spec.tokens_per_block;
  return block >= spec.BlocksUnreadFrom(FirstRow((end + resume - 1) / resume * resume));
}

int32_t CacheCoordinator::ResumableIn(int32_t group, std::span<const BlockKey> keys, int32_t tokens,
                                      const HostCache* host) const {
  const CacheGroupSpec& spec = config_.groups[static_cast<size_t>(group)];
  const auto found = [&](int32_t block) { return Holds(KeyOf(group, keys, block), host); };
  const int32_t resume = config_.TokensPerResume();
  if (spec.kind == CacheGroupKind::kFullHistory) {
    int32_t blocks = 0;
    while ((blocks + 1) * spec.tokens_per_block <= tokens && found(blocks)) ++blocks;
    return blocks * spec.tokens_per_block / resume * resume;
  }
  // From the end back: a block that is missing is passed by ending before it.
  while (tokens > 0) {
    const int32_t first = spec.BlocksUnreadFrom(FirstRow(tokens));
    int32_t block = tokens / spec.tokens_per_block - 1;
    while (block >= first && found(block)) --block;
    if (block < first) break;
    tokens = block * spec.tokens_per_block / resume * resume;
  }
  return tokens;
}

BlockKey CacheCoordinator::StateKeyOf(std::span<const BlockKey> keys, int32_t tokens,
                                      int32_t index) const {
  BlockKey key = keys[static_cast<size_t>(tokens / config_.TokensPerKey() - 1)];
  // The blocks of groups that end at the same token differ from this in the last byte alone.
  uint8_t* const last = key.data() + key.size() - 4;
  last[0] ^= 1;
  last[1] ^= static_cast<uint8_t>(index >> 8);
  last[2] ^= static_cast<uint8_t>(index);
  return key;
}

bool CacheCoordinator::HoldsState(std::span<const BlockKey> keys, int32_t tokens,
                                  const HostCache* host) const {
  for (int32_t i = config_.StatePages() - 1; i >= 0; --i) {
    if (!Holds(StateKeyOf(keys, tokens, i), host)) return false;
  }
  return true;
}

int32_t CacheCoordinator::ResumableState(std::span<const BlockKey> keys, int32_t tokens,
                                         const HostCache* host) const {
  while (tokens > 0 && !HoldsState(keys, tokens, host)) tokens -= config_.TokensPerResume();
  return tokens;
}

void CacheCoordinator::ReleaseAll(std::vector<int32_t>& pages) {
  while (!pages.empty()) {
    // None where a page was to be returned and was not reserved.
    if (pages.back() != CacheTables::kNoPage) pool_.Release(pages.back());
    pages.pop_back();
  }
}

int32_t CacheCoordinator::FindPrefix(std::span<const BlockKey> keys, int32_t max_tokens,
                                     const HostCache* host) const {
  const int32_t resume = config_.TokensPerResume();
  const auto known = static_cast<int32_t>(keys.size()) * config_.TokensPerKey();
  int32_t tokens = std::min(max_tokens, known) / resume * resume;
  const auto num_groups = static_cast<int32_t>(config_.groups.size());
  // Each group may shorten what the others found: until nothing changes.
  for (bool changed = true; changed && tokens > 0;) {
    changed = false;
    for (int32_t g = 0; g < num_groups; ++g) {
      const int32_t shorter = ResumableIn(g, keys, tokens, host);
      changed = changed || shorter < tokens;
      tokens = shorter;
    }
    const int32_t shorter = ResumableState(keys, tokens, host);
    changed = changed || shorter < tokens;
    tokens = shorter;
  }
  return tokens;
}

int32_t CacheCoordinator::SharePage(CacheTables& tables, const BlockKey& key, int32_t group,
                                    size_t index) {
  const std::optional<int32_t> page = pool_.Share(key);
  if (page) return *page;
  host_->Touch(key);
  tables.returns_.push_back({key, group, index});
  return CacheTables::kNoPage;
}

CacheCoordinator::SharedPrefix CacheCoordinator::SharePrefix(CacheTables& tables,
                                                             std::span<const BlockKey> keys,
                                                             int32_t max_tokens) {
  OUTRIDER_CHECK(tables.returns_.empty());
  const int32_t tokens = FindPrefix(keys, max_tokens);
  const int32_t in_pool = host_ == nullptr ? tokens : FindPrefix(keys, tokens, nullptr);
  for (int32_t g = 0; g < tables.num_groups() && tokens > 0; ++g) {
    const CacheGroupSpec& spec = config_.groups[static_cast<size_t>(g)];
    std::vector<int32_t>& pages = tables.blocks_[static_cast<size_t>(g)];
    OUTRIDER_CHECK(pages.empty());
    const int32_t left = spec.BlocksUnreadFrom(FirstRow(tokens));
    tables.num_left_[static_cast<size_t>(g)] = left;
    pages.assign(static_cast<size_t>(left), CacheTables::kNoPage);
    for (int32_t b = left; b < tokens / spec.tokens_per_block; ++b) {
      pages.push_back(SharePage(tables, KeyOf(g, keys, b), g, pages.size()));
    }
  }
  for (int32_t i = 0; i < config_.StatePages() && tokens > 0; ++i) {
    tables.state_.restored.push_back(SharePage(tables, StateKeyOf(keys, tokens, i),
                                               tables.num_groups(), static_cast<size_t>(i)));
  }
  tables.num_published_ = tokens / config_.TokensPerKey();
  return {tokens, in_pool};
}

bool CacheCoordinator::Return(CacheTables& tables) {
  for (const CacheTables::Return& r : tables.returns_) {
    const int32_t page = tables.PageOf(r);
    if (!host_->Restore(r.key, page)) return false;
    pool_.Publish(page, r.key);
  }
  tables.returns_.clear();
  return true;
}

void CacheCoordinator::ForgetPublished() {
  pool_.ForgetPublished();
  if (host_ != nullptr) host_->Forget();
}

void CacheCoordinator::SetHostCache(HostCache* host) {
  host_ = host;
  pool_.SetLeaves([host](int32_t page, const BlockKey& key) { host->Save(key, page); });
}

bool CacheCoordinator::Reserve(CacheTables& tables, int32_t first, int32_t end, int32_t full_end) {
  OUTRIDER_CHECK(first <= end && end <= full_end);
  const auto blocks_of = [&](size_t g) {
    const CacheGroupSpec& spec = config_.groups[g];
    return spec.BlocksBefore(spec.kind == CacheGroupKind::kFullHistory ? full_end : end);
  };
  StateTables& state = tables.state_;
  const bool has_state = !state.state.empty();
  int64_t missing = has_state ? 0 : config_.StatePages() + config_.StateRowPages();
  missing += std::ssize(tables.returns_);
  for (size_t g = 0; g < tables.blocks_.size(); ++g) {
    missing += std::max(0, blocks_of(g) - static_cast<int32_t>(tables.blocks_[g].size()));
  }
  if (missing > pool_.num_free()) return false;
  for (const CacheTables::Return& r : tables.returns_) {
    tables.PageOf(r) = pool_.Allocate().value();
  }
  for (size_t g = 0; g < tables.blocks_.size(); ++g) {
    std::vector<int32_t>& pages = tables.blocks_[g];
    while (static_cast<int32_t>(pages.size()) < blocks_of(g)) {
      pages.push_back(pool_.Allocate().value());
    }
  }
  if (!has_state) {
    for (int32_t i = 0; i < config_.StatePages(); ++i) {
      state.state.push_back(pool_.Allocate().value());
    }
    for (int32_t i = 0; i < config_.StateRowPages(); ++i) {
      state.rows.push_back(pool_.Allocate().value());
    }
  }
  return true;
}

void CacheCoordinator::MakeCheckpoints(CacheTables& tables, std::span<const BlockKey> keys,
                                       int32_t first, int32_t end, int32_t most_shared) {
  const int32_t pages = config_.StatePages();
  if (pages == 0) return;
  const int32_t resume = config_.TokensPerResume();
  const int32_t known = static_cast<int32_t>(keys.size()) * config_.TokensPerKey();
  const int32_t last = std::min(most_shared, known) / resume * resume;
  const int32_t step = config_.TokensPerCheckpoint();
  for (int32_t tokens = first / resume * resume + resume; tokens <= std::min(end, last);
       tokens += resume) {
    if (tokens % step != 0 && tokens != last) continue;
    if (pool_.num_free() < pages || HoldsState(keys, tokens, host_)) continue;
    StateCheckpoint& checkpoint = tables.state_.checkpoints.emplace_back();
    checkpoint.tokens = tokens;
    for (int32_t i = 0; i < pages; ++i) checkpoint.pages.push_back(pool_.Allocate().value());
  }
}

void CacheCoordinator::Publish(CacheTables& tables, std::span<const BlockKey> keys,
                               int32_t final_tokens) {
  const int32_t step = config_.TokensPerKey();
  const int32_t end = std::min(final_tokens / step, static_cast<int32_t>(keys.size()));
  for (int32_t& i = tables.num_published_; i < end; ++i) {
    const int32_t tokens = (i + 1) * step;
    for (int32_t g = 0; g < tables.num_groups(); ++g) {
      const int32_t per_block = config_.groups[static_cast<size_t>(g)].tokens_per_block;
      if (tokens % per_block != 0) continue;
      const int32_t block = tokens / per_block - 1;
      const int32_t page = tables.blocks_[static_cast<size_t>(g)][static_cast<size_t>(block)];
      if (page != CacheTables::kNoPage && IsReadBehind(g, block)) {
        pool_.Publish(page, KeyOf(g, keys, block));
      }
    }
  }
  for (const StateCheckpoint& checkpoint : tables.state_.checkpoints) {
    if (checkpoint.tokens > std::min(final_tokens, end * step)) break;
    for (size_t p = 0; p < checkpoint.pages.size(); ++p) {
      pool_.Publish(checkpoint.pages[p],
                    StateKeyOf(keys, checkpoint.tokens, static_cast<int32_t>(p)));
    }
  }
}

void CacheCoordinator::Advance(CacheTables& tables, int32_t computed) {
  for (size_t g = 0; g < tables.blocks_.size(); ++g) {
    std::vector<int32_t>& pages = tables.blocks_[g];
    const int32_t left = std::min(config_.groups[g].BlocksUnreadFrom(FirstRow(computed)),
                                  static_cast<int32_t>(pages.size()));
    for (int32_t& b = tables.num_left_[g]; b < left; ++b) {
      int32_t& page = pages[static_cast<size_t>(b)];
      pool_.Release(page);
      page = CacheTables::kNoPage;
    }
  }
  StateTables& state = tables.state_;
  ReleaseAll(state.restored);
  while (!state.checkpoints.empty() && state.checkpoints.front().tokens <= computed) {
    ReleaseAll(state.checkpoints.front().pages);
    state.checkpoints.erase(state.checkpoints.begin());
  }
}

void CacheCoordinator::Clear(CacheTables& tables) {
  for (size_t g = 0; g < tables.blocks_.size(); ++g) {
    std::vector<int32_t>& pages = tables.blocks_[g];
    // The tail goes back first: it is handed out last while warm, and forgotten first when
    // published.
    while (static_cast<int32_t>(pages.size()) > tables.num_left_[g]) {
      if (pages.back() != CacheTables::kNoPage) pool_.Release(pages.back());
      pages.pop_back();
    }
    pages.clear();
    tables.num_left_[g] = 0;
  }
  StateTables& state = tables.state_;
  for (StateCheckpoint& checkpoint : state.checkpoints) ReleaseAll(checkpoint.pages);
  state.checkpoints.clear();
  for (std::vector<int32_t>* pages : {&state.restored, &state.rows, &state.state}) {
    ReleaseAll(*pages);
  }
  tables.num_published_ = 0;
  tables.returns_.clear();
}

}  // namespace outrider
