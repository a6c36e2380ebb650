// The target's hidden rows, as a draft model reads them, kept for rows that modules run later.
//
// With KeptRows::kLast a few rows of each request slot are kept. All modules then run after every
// step. Only the last rows run again: those that read drafts which were rejected.
//
// With KeptRows::kAll the rows of every cache block are kept as long as the block holds its tokens,
// so a module may stop for any number of steps and catch up later. Rows are kept by block and not
// by request: a request that finds a block in the prefix cache needs its rows too, even if the
// request that computed the block ended long ago. This takes BytesPerToken of memory for every
// token in the cache.
//
// An entry of a module is *final* when it was computed from tokens that are known to be right. A
// module has *finished* a block when all its entries in the block are final. Each block counts the
// modules that have finished it. Requests that share a block (BlockKeyHasher) share its entries, so
// they skip finished ones. A block that is not marked as finished costs only time: its entries are
// computed again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/draft/drafter.h"
#include "outrider/kv/page_number.h"
#include "outrider/networks/draft_model.h"
#include "outrider/ops/kv_cache.h"

namespace outrider {

/// A module that is at most kMostRowsBehind rows behind runs them together with the rows of the
/// step. More rows run before the step's, kCatchUpRows in a pass.
inline constexpr int32_t kMostRowsBehind = 64;
inline constexpr int32_t kCatchUpRows = 1024;

class TargetHiddenRows {
 public:
  /// num_last: rows that kLast keeps before those of a step. kAll needs modules without windows, as
  /// what has left a window cannot be computed later.
  TargetHiddenRows(const DraftModel& model, const KvCache& cache, KeptRows kept, int32_t num_slots,
                   int32_t num_last);

  /// What kAll takes once every block has been used.
  static constexpr int64_t BytesPerToken(int64_t width, DType type) {
    return width * static_cast<int64_t>(DTypeSize(type));
  }

  KeptRows kept() const { return kept_; }

  /// Takes the rows of a step, positions first_position .. frontier. Called before a drafting pass.
  /// A block whose first position is among them has new tokens: no module has finished it.
  void TakeStep(const DraftRequest& request);

  /// Keeps the last rows of a step, for kLast. Called after the pass, as rows before the step's may
  /// be read until then.
  void KeepLast(const DraftRequest& request);

  /// Copies the rows of all TakeStep and KeepLast since the last call from `hidden`, the rows of
  /// the step.
  void CopyFrom(DraftModel& model, Tensor hidden);

  /// Whether the row of a position before first_position is kept, if it was taken since the slot's
  /// Reset.
  bool Has(const DraftRequest& request, int32_t position) const;

  /// Which rank has the row of a position before first_position. It is another one only where ranks
  /// keep the rows of their own requests.
  int32_t RankOf(const DraftRequest& request, int32_t position) const {
    return kept_ == KeptRows::kLast ? place_.rank
                                    : RankOfPage(PageAt(request, position), place_.ranks);
  }
  const RankPlace& place() const { return place_; }
  /// Whether other ranks have rows that this one has not.
  bool divided() const { return kept_ == KeptRows::kAll && place_.ranks > 1; }

  /// Where in rows() the row of a position is, on the rank that has it. Has must be true.
  int32_t RowOf(const DraftRequest& request, int32_t position) const;
  Tensor rows() const { return rows_->rows(); }

  /// Returns the first position from `next` on, up to `limit`, that lies in a block which module m
  /// has not finished and which has not left the modules' window.
  int32_t SkipFinished(const DraftRequest& request, int32_t m, int32_t next, int32_t limit) const;

  /// Marks the blocks from position `first` on that modules have finished. final_end [modules]:
  /// entries of module m below final_end[m] are final; it does not rise with m.
  void MarkFinished(const DraftRequest& request, int32_t first, std::span<const int32_t> final_end);

  // What is kept of a page: how many modules have finished it and, of kAll, its rows. See Drafter.

  int64_t page_bytes() const {
    return static_cast<int64_t>(sizeof(Block)) + (kept_ == KeptRows::kAll ? RowBytes() : 0);
  }
  void ReadPage(const Ops& ops, int32_t page, std::span<std::byte> to) const;
  void WritePage(const Ops& ops, int32_t page, std::span<const std::byte> from);

 private:
  struct Block {
    int32_t has_rows = 0;          // kAll: 1 after its first use
    int32_t finished_modules = 0;  // how many modules, the first ones, have finished the block
  };

  /// Bytes of a row of kAll; the rows of a page lie one behind the other.
  int64_t RowBytes() const { return BytesPerToken(rows().stride, rows().dtype) * block_size_; }
  bool KeepsRowsOf(int32_t page) const {
    return kept_ == KeptRows::kAll && RankOfPage(page, place_.ranks) == place_.rank;
  }
  std::byte* RowsOf(int32_t page) const {
    return static_cast<std::byte*>(rows().data) + OwnPage(page, place_.ranks) * RowBytes();
  }

  int32_t PageAt(const DraftRequest& request, int32_t position) const {
    return request.block_tables[group_][static_cast<size_t>(position / block_size_)];
  }
  size_t PageOf(const DraftRequest& request, int32_t position) const {
    return static_cast<size_t>(PageAt(request, position));
  }

  int32_t LastRow(int32_t slot, int32_t position) const {
    return slot * num_last_ + position % num_last_;
  }

  size_t group_;        // the modules' cache group
  int32_t block_size_;  // tokens
  KeptRows kept_;
  int32_t num_last_;
  RankPlace place_;            // AttentionPlan::cache_place
  std::vector<Block> blocks_;  // by page, of all ranks
  // kAll: [the rank's pages, block_size], kLast: [slots, num_last], by position modulo num_last
  std::unique_ptr<RowMemory> rows_;
  RowCopies copies_;  // from the rows of the step
};

}  // namespace outrider
