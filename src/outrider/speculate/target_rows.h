// The target's hidden rows, by cache block, for MTP modules that have put them off, and how many
// modules are through with each block.
//
// With RowLife::kContent a row that was shown is there as long as what its block holds: until the
// block is entered anew. So no one who has the block can miss it, whatever happens before: hits in
// the prefix cache on blocks that modules have put off (shared blocks are full and were shown
// whole), the end, abort or preemption of whoever computed them, any number of sharers that catch
// up in any order, blocks of one prefix that come from different requests, any sequence of depths.
// The memory is that of a part of the cache, BytesPerToken for every token that it holds.
//
// With kThrough it is there until all modules are through with its block. That is enough where
// every pass runs all of them: when a block can be shared its entries are final, so sharers skip
// it, and only the request that computed a block reads rows of it.
//
// "Through" is said by whoever ran a module over the whole block with tokens known to be right.
// What the entries of a block depend on is the same for all who share it (BlockKeyHasher), so one
// says it for all of them. It saves work; with kContent nothing goes wrong when it is said late.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/speculate/drafter.h"

namespace outrider {

/// What a request has put off runs beside the rows of a step when it is few rows; more are caught
/// up on before, so many at once.
inline constexpr int32_t kFewRows = 64;
inline constexpr int32_t kRowsAtOnce = 1024;

class TargetRows {
 public:
  TargetRows(int32_t num_blocks, int32_t block_size, int64_t width, RowLife life)
      : block_size_(block_size),
        width_(width),
        life_(life),
        blocks_(static_cast<size_t>(num_blocks)) {}

  /// With kContent, at most.
  static constexpr int64_t BytesPerToken(int64_t width) {
    return width * static_cast<int64_t>(sizeof(float));
  }

  /// Keeps the rows of positions first_position .. frontier. A block that is entered at its start
  /// has a new content.
  void Keep(const DraftRequest& request, MatrixView<const float> hidden);

  /// Whether the rows of a position's block are there.
  bool Holds(std::span<const int32_t> block_table, int32_t position) const {
    return BlockOf(block_table, position).rows != nullptr;
  }

  /// [width] of a position that was shown and is held.
  const float* Row(std::span<const int32_t> block_table, int32_t position) const;

  /// The first position from `next` on, up to `limit`, whose block module m is not through with.
  int32_t SkipFinal(std::span<const int32_t> block_table, int32_t m, int32_t next,
                    int32_t limit) const;

  /// Entries below next[m] are final in module m; `next` [modules] is falling. Says so of the
  /// blocks from position `first` on.
  void SetFinal(std::span<const int32_t> block_table, int32_t first, std::span<const int32_t> next);

 private:
  struct Block {
    std::unique_ptr<float[]> rows;  // [block_size, width], or null
    int32_t final_modules = 0;      // every entry of the block is final in so many
  };

  void Enter(Block& block);
  Block& BlockOf(std::span<const int32_t> block_table, int32_t position) {
    const auto index = static_cast<size_t>(position / block_size_);
    return blocks_[static_cast<size_t>(block_table[index])];
  }
  const Block& BlockOf(std::span<const int32_t> block_table, int32_t position) const {
    return const_cast<TargetRows*>(this)->BlockOf(block_table, position);
  }

  int32_t block_size_;
  int64_t width_;
  RowLife life_;
  std::vector<Block> blocks_;                    // by block number
  std::vector<std::unique_ptr<float[]>> spare_;  // memory of rows that are gone, to be used again
};

}  // namespace outrider
