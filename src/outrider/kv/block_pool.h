// The pages of the KV cache as numbers: who owns which block. Knows nothing of tokens or tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace outrider {

/// Blocks 0 .. num_blocks-1 with reference counts. A block is free while its count is 0.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  /// Takes a free block with one reference, or nothing when none is free.
  std::optional<int32_t> Allocate();

  /// Drops one reference; the last one frees the block.
  void Release(int32_t block);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  double Usage() const;

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a stack: the block freed last is warm and goes out first
};

/// The blocks of one request, in order of position. Owns its references.
class BlockTable {
 public:
  /// Grows to cover `tokens` positions; false, and unchanged, when the pool has too few free
  /// blocks.
  bool Reserve(BlockPool& pool, int64_t tokens, int32_t block_size);

  /// Gives all blocks back.
  void Clear(BlockPool& pool);

  const std::vector<int32_t>& blocks() const { return blocks_; }

 private:
  std::vector<int32_t> blocks_;
};

/// Blocks that `tokens` positions need.
constexpr int64_t BlocksFor(int64_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

}  // namespace outrider
