// The pages of all cache groups: what a request holds in each, what a prefix hit, an admission and
// an advance cost. Numbers only; knows nothing of tokens or tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kv/block_key.h"
#include "outrider/kv/block_pool.h"
#include "outrider/kv/cache_group.h"
#include "outrider/kv/host_cache.h"

namespace outrider {

/// The pages of one request, by group. Made and changed by a CacheCoordinator, which owns the
/// references.
class CacheTables {
 public:
  /// Stands in a table where a block has left the window.
  static constexpr int32_t kNoPage = -1;

  /// The pages of the running state.
  const StateTables& state() const { return state_; }

  int32_t num_groups() const { return static_cast<int32_t>(blocks_.size()); }

  /// By group: the page of each block, in order of position; leading ones may be kNoPage.
  std::span<const std::vector<int32_t>> blocks() const { return blocks_; }
  std::span<const int32_t> blocks(int32_t group) const {
    return blocks_[static_cast<size_t>(group)];
  }

 private:
  friend class CacheCoordinator;

  /// A page that a host cache is to give back.
  struct Return {
    BlockKey key;
    int32_t group;  // num_groups(): of the restored state
    size_t index;   // in the table of the group; kNoPage until a page is reserved for it
  };
  int32_t& PageOf(const Return& r) {
    return (r.group == num_groups() ? state_.restored
                                    : blocks_[static_cast<size_t>(r.group)])[r.index];
  }

  std::vector<std::vector<int32_t>> blocks_;
  std::vector<Return> returns_;
  std::vector<int32_t> num_left_;  // by group: leading blocks that have left the window
  int32_t num_published_ = 0;      // leading keys whose turn to be published has come
  StateTables state_;
};

class CacheCoordinator {
 public:
  /// place: of several ranks that each keep the cache of their own requests, whose pages these are
  /// (PageNumber); else the default.
  explicit CacheCoordinator(CacheConfig config, const RankPlace& place = {});

  const CacheConfig& config() const { return config_; }
  const BlockPool& pool() const { return pool_; }

  /// Tables that hold nothing. Growing up to `max_tokens` then allocates no memory.
  CacheTables MakeTables(int32_t max_tokens) const;

  /// The longest prefix of up to `max_tokens` tokens that every group can resume: full history
  /// needs all blocks, a sliding window those that rows from its end on read, a running state the
  /// state behind exactly these tokens. A block may be in the pool or in the host cache. keys: of
  /// the request's tokens, one per TokensPerKey(). Returns its tokens, a multiple of
  /// TokensPerResume().
  int32_t FindPrefix(std::span<const BlockKey> keys, int32_t max_tokens) const {
    return FindPrefix(keys, max_tokens, host_);
  }

  /// Tokens of that prefix, and of the prefix that the pool alone has.
  struct SharedPrefix {
    int32_t tokens = 0;
    int32_t in_pool = 0;
  };

  /// Shares the blocks of that prefix. `tables` must hold nothing. What only the host cache has
  /// gets pages by Reserve, and is there after Return.
  SharedPrefix SharePrefix(CacheTables& tables, std::span<const BlockKey> keys, int32_t max_tokens);

  /// Copies what the host cache is to give back into its pages, which are reserved, and publishes
  /// them. False: it could not, and has it no more; the tables are to be cleared.
  bool Return(CacheTables& tables);

  /// Takes pages so that rows [first, end) can be written and read what they need; full-history
  /// groups take those of tokens [0, full_end). False, and nothing is changed, when the pool has
  /// too few free pages. first <= end <= full_end.
  bool Reserve(CacheTables& tables, int32_t first, int32_t end, int32_t full_end);

  /// Takes pages for states that rows [first, end) of a prompt are to leave behind them, for others
  /// who begin alike: every TokensPerCheckpoint() tokens, and at the last place up to `most_shared`
  /// tokens where a request can resume. Those for which no page is free are left out.
  void MakeCheckpoints(CacheTables& tables, std::span<const BlockKey> keys, int32_t first,
                       int32_t end, int32_t most_shared);

  /// Whether Publish with `final_tokens` would publish anything.
  bool HasUnpublished(const CacheTables& tables, int32_t final_tokens) const {
    return final_tokens / config_.TokensPerKey() > tables.num_published_;
  }

  /// Publishes the blocks that are complete in tokens [0, final_tokens), under their keys, and the
  /// checkpoints in them. Blocks of windows that lie before all places where a request can resume
  /// are left out.
  void Publish(CacheTables& tables, std::span<const BlockKey> keys, int32_t final_tokens);

  /// Gives back what no row at `computed` or later reads, nor one of rerun_tokens before it; of a
  /// running state what a step has read or left on its way.
  void Advance(CacheTables& tables, int32_t computed);

  /// Forgets all published prefixes (BlockPool::ForgetPublished), those in the host cache too.
  void ForgetPublished();

  /// From now on published pages that the pool gives up go to `host`, which must outlive the
  /// coordinator, and prefixes are found there, too.
  void SetHostCache(HostCache* host);
  void SetLog(std::vector<BlockPoolEvent>* log) { pool_.SetLog(log); }

  /// Gives everything back.
  void Clear(CacheTables& tables);

 private:
  BlockKey KeyOf(int32_t group, std::span<const BlockKey> keys, int32_t block) const;
  /// Whether a request that resumes at the first place behind a block may read it. If not, nobody
  /// who shares a prefix does: places further on lie further from it.
  bool IsReadBehind(int32_t group, int32_t block) const;
  /// The key of page `index` of the state after `tokens` tokens, a multiple of TokensPerResume().
  BlockKey StateKeyOf(std::span<const BlockKey> keys, int32_t tokens, int32_t index) const;
  /// Whether the pool, or `host` if there is one, has the page.
  bool Holds(const BlockKey& key, const HostCache* host) const {
    return pool_.Holds(key) || (host != nullptr && host->Holds(key));
  }
  bool HoldsState(std::span<const BlockKey> keys, int32_t tokens, const HostCache* host) const;
  /// The longest prefix of up to `tokens` tokens whose state is there.
  int32_t ResumableState(std::span<const BlockKey> keys, int32_t tokens,
                         const HostCache* host) const;
  void ReleaseAll(std::vector<int32_t>& pages);
  /// The longest prefix of up to `tokens` tokens that one group can resume.
  int32_t ResumableIn(int32_t group, std::span<const BlockKey> keys, int32_t tokens,
                      const HostCache* host) const;
  int32_t FindPrefix(std::span<const BlockKey> keys, int32_t max_tokens,
                     const HostCache* host) const;
  /// The page of `key`, shared; kNoPage for one that is to be returned to this place.
  int32_t SharePage(CacheTables& tables, const BlockKey& key, int32_t group, size_t index);
  int32_t FirstRow(int32_t first) const { return std::max(0, first - config_.rerun_tokens); }

  CacheConfig config_;
  BlockPool pool_;
  HostCache* host_ = nullptr;
};

}  // namespace outrider
