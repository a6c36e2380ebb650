// The pages of the KV cache as numbers: who owns which block, and what published blocks can be
// shared. Knows nothing of tokens or tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "outrider/kv/page_number.h"
#include "outrider/kv/prefix_index.h"

namespace outrider {

/// What became of published blocks, for those who keep a copy of the index.
struct BlockPoolEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind;
  BlockKey key;  // not kCleared

  bool operator==(const BlockPoolEvent&) const = default;
};

/// Blocks 0 .. num_blocks-1, or those of one of several ranks (PageNumber), with reference counts.
/// A block is free while its count is 0. A free block that was published keeps its contents until
/// it is needed: the one unused for longest goes first.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks, const RankPlace& place = {});

  /// Takes a free block with one reference, or nothing when none is free. Unpublished blocks go
  /// out first; a published one is forgotten by the prefix index.
  std::optional<int32_t> Allocate();

  /// Drops one reference; the last one frees the block.
  void Release(int32_t number);

  /// Makes a referenced block findable. Nothing happens when it is already, or when another block
  /// holds the same contents.
  void Publish(int32_t block, const BlockKey& key);

  /// Whether a block is published under `key`.
  bool Holds(const BlockKey& key) const { return index_.Find(key).has_value(); }

  /// The block published under `key`, with one more reference.
  std::optional<int32_t> Share(const BlockKey& key);

  /// Forgets what was published. Blocks that are in use stay with those who use them.
  void ForgetPublished();

  /// From now on appends what becomes of published blocks to `log`, which must outlive the pool;
  /// null: no more.
  void SetLog(std::vector<BlockPoolEvent>* log) { log_ = log; }

  /// From now on `leaves` is called with a published block that Allocate gives to another use, and
  /// with its key, while the block still holds what the key names. Empty: no more.
  using Leaves = std::function<void(int32_t block, const BlockKey& key)>;
  void SetLeaves(Leaves leaves) { leaves_ = std::move(leaves); }

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(unpublished_.size()) + num_idle_; }
  int32_t references(int32_t block) const {
    return references_[static_cast<size_t>(OwnPage(block, place_.ranks))];
  }
  double Usage() const;

 private:
  // All below count the pool's own blocks, from 0.

  void Link(int32_t block);
  void Unlink(int32_t block);

  RankPlace place_;
  std::vector<int32_t> references_;
  std::vector<int32_t> unpublished_;  // free; a stack: the block freed last is warm, goes out first
  PrefixIndex index_;
  std::vector<BlockPoolEvent>* log_ = nullptr;
  Leaves leaves_;

  // Free and published, a ring in order of release through the sentinel num_blocks.
  struct Neighbours {
    int32_t before;
    int32_t after;
  };
  std::vector<Neighbours> idle_;
  int32_t num_idle_ = 0;
};

/// Blocks that `tokens` positions need.
constexpr int64_t BlocksFor(int64_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

}  // namespace outrider
