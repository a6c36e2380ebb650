// The target's hidden rows, by cache block, for as long as an MTP module may have to read them, and
// how many modules are through with each block. Kept by block and not by request: whoever shares a
// block that some module has not been through can take it through.
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
  TargetRows(int32_t num_blocks, int32_t block_size, int64_t width)
      : block_size_(block_size), width_(width), blocks_(static_cast<size_t>(num_blocks)) {}

  /// Keeps the rows of positions first_position .. frontier. A block that is entered at its start
  /// has a new content.
  void Keep(const DraftRequest& request, MatrixView<const float> hidden);

  /// [width] of a position that was kept and not forgotten.
  const float* Row(std::span<const int32_t> block_table, int32_t position) const;

  /// The first position from `next` on, up to `limit`, whose block module m is not through with.
  int32_t SkipFinal(std::span<const int32_t> block_table, int32_t m, int32_t next,
                    int32_t limit) const;

  /// Entries below next[m] are final in module m; `next` [modules] is falling. Changes blocks from
  /// position `first` on.
  void SetFinal(std::span<const int32_t> block_table, int32_t first, std::span<const int32_t> next);

  /// Forgets the rows of blocks between `first` and `end`; returns where it stopped.
  int32_t Forget(std::span<const int32_t> block_table, int32_t first, int32_t end);

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
  std::vector<Block> blocks_;                    // by block number
  std::vector<std::unique_ptr<float[]>> spare_;  // forgotten rows, to reuse their memory
};

}  // namespace outrider
