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
// With kRecent only the last few rows of each slot are kept, in little memory that stays in a
// cache. That is enough where every pass runs all modules: rows run again only until the drafts
// that they read are known to be right or wrong, and when a block can be shared its entries are
// final, so that sharers skip it.
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
#include "outrider/kv/kv_cache.h"
#include "outrider/speculate/drafter.h"

namespace outrider {

/// What a request has put off runs beside the rows of a step when it is few rows; more are caught
/// up on before, so many at once.
inline constexpr int32_t kFewRows = 64;
inline constexpr int32_t kRowsAtOnce = 1024;

class TargetRows {
 public:
  /// recent: how many rows before those of a step are read again at most, with kRecent.
  TargetRows(const KvCache& cache, int64_t width, RowLife life, int32_t num_slots, int32_t recent);

  /// With kContent, at most.
  static constexpr int64_t BytesPerToken(int64_t width) {
    return width * static_cast<int64_t>(sizeof(float));
  }

  RowLife life() const { return life_; }

  /// Before a pass: a step's rows, of positions first_position .. frontier. A block that is entered
  /// at its start has a new content.
  void Show(const DraftRequest& request, MatrixView<const float> hidden);
  /// After it.
  void KeepRecent(const DraftRequest& request, MatrixView<const float> hidden);

  /// Whether the row of a position before first_position is there, when it was shown since the
  /// slot's Reset.
  bool Holds(const DraftRequest& request, int32_t position) const;

  /// [width] of such a position.
  const float* Row(const DraftRequest& request, int32_t position) const;

  /// The first position from `next` on, up to `limit`, whose block module m is not through with.
  int32_t SkipFinal(std::span<const int32_t> block_table, int32_t m, int32_t next,
                    int32_t limit) const;

  /// Entries below next[m] are final in module m; `next` [modules] is falling. Says so of the
  /// blocks from position `first` on.
  void SetFinal(std::span<const int32_t> block_table, int32_t first, std::span<const int32_t> next);

 private:
  struct Block {
    std::unique_ptr<float[]> rows;  // kContent: [block_size, width], or null
    int32_t final_modules = 0;      // every entry of the block is final in so many
  };

  Block& BlockOf(std::span<const int32_t> block_table, int32_t position) {
    const auto index = static_cast<size_t>(position / block_size_);
    return blocks_[static_cast<size_t>(block_table[index])];
  }
  const Block& BlockOf(std::span<const int32_t> block_table, int32_t position) const {
    return const_cast<TargetRows*>(this)->BlockOf(block_table, position);
  }

  size_t RecentIndex(int32_t slot, int32_t position) const {
    return static_cast<size_t>((int64_t{slot} * recent_ + position % recent_) * width_);
  }

  int32_t block_size_;
  int64_t width_;
  RowLife life_;
  int32_t recent_;
  std::vector<Block> blocks_;       // by block number
  std::vector<float> recent_rows_;  // kRecent: [slots, recent, width], by position modulo recent
};

}  // namespace outrider
