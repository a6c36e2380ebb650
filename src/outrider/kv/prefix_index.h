// Finds cached blocks by the key of their contents.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "outrider/kv/block_key.h"

namespace outrider {

/// At most one block per key and one key per block. A hash table with linear probing whose memory
/// is fixed at construction; a key's first bytes are its hash.
class PrefixIndex {
 public:
  explicit PrefixIndex(int32_t num_blocks);

  std::optional<int32_t> Find(const BlockKey& key) const;
  bool Holds(int32_t block) const { return present_[static_cast<size_t>(block)] != 0; }

  /// False, and nothing changes, when the key has a block or the block has a key already.
  bool Insert(const BlockKey& key, int32_t block);

  /// The block must be present.
  const BlockKey& KeyOf(int32_t block) const { return keys_[static_cast<size_t>(block)]; }

  /// The block must be present.
  void Erase(int32_t block);

 private:
  size_t Home(const BlockKey& key) const;
  /// The place of `key`, or the free place where it belongs.
  size_t Place(const BlockKey& key) const;
  const BlockKey& KeyAt(size_t place) const { return keys_[static_cast<size_t>(table_[place])]; }

  std::vector<BlockKey> keys_;    // by block
  std::vector<uint8_t> present_;  // by block
  std::vector<int32_t> table_;    // block numbers, -1: free; a power of two, at most half full
};

}  // namespace outrider
