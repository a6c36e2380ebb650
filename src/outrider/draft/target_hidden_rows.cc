#include "outrider/draft/target_hidden_rows.h"

#include <algorithm>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

TargetHiddenRows::TargetHiddenRows(const DraftModel& model, const KvCache& cache, KeptRows kept,
                                   int32_t num_slots, int32_t num_last)
    : group_(static_cast<size_t>(cache.group_of(model.first_cache_layer()))),
      block_size_(cache.config().groups[group_].tokens_per_block),
      kept_(kept),
      num_last_(num_last),
      place_(model.attention().cache_place()),
      blocks_(static_cast<size_t>(cache.config().num_pages) * static_cast<size_t>(place_.ranks)),
      rows_(model.device().ops.MakeRows(kept == KeptRows::kAll
                                            ? int64_t{cache.config().num_pages} * block_size_
                                            : int64_t{num_slots} * num_last,
                                        model.width())) {
  for (int32_t i = model.first_cache_layer(); i < cache.num_layers(); ++i) {
    OUTRIDER_CHECK(cache.group_of(i) == static_cast<int32_t>(group_));
  }
  OUTRIDER_CHECK(kept == KeptRows::kLast ||
                 cache.config().groups[group_].kind == CacheGroupKind::kFullHistory);
}

void TargetHiddenRows::TakeStep(const DraftRequest& r) {
  const int32_t first_block_start =
      (r.first_position + block_size_ - 1) / block_size_ * block_size_;
  for (int32_t p = first_block_start; p <= r.frontier; p += block_size_) {
    Block& block = blocks_[PageOf(r, p)];
    block.finished_modules = 0;
    block.has_rows = kept_ == KeptRows::kAll ? 1 : 0;
  }
  if (kept_ == KeptRows::kLast) return;
  for (int32_t p = r.first_position; p <= r.frontier; ++p) {
    OUTRIDER_CHECK(blocks_[PageOf(r, p)].has_rows != 0,
                   "slot {} starts inside a block, at position {}", r.slot, p);
    if (RankOf(r, p) != place_.rank) continue;
    copies_.Add(r.first_row + p - r.first_position, RowOf(r, p));
  }
}

void TargetHiddenRows::KeepLast(const DraftRequest& r) {
  if (kept_ != KeptRows::kLast) return;
  for (int32_t p = std::max(r.first_position, r.frontier + 1 - num_last_); p <= r.frontier; ++p) {
    copies_.Add(r.first_row + p - r.first_position, LastRow(r.slot, p));
  }
}

void TargetHiddenRows::CopyFrom(DraftModel& model, Tensor hidden) {
  model.CopyRows(hidden, rows(), copies_);
  copies_.clear();
}

bool TargetHiddenRows::Has(const DraftRequest& r, int32_t position) const {
  return kept_ == KeptRows::kLast ? position >= r.first_position - num_last_
                                  : blocks_[PageOf(r, position)].has_rows != 0;
}

int32_t TargetHiddenRows::RowOf(const DraftRequest& r, int32_t position) const {
  OUTRIDER_CHECK(Has(r, position), "slot {}: the row of position {} is gone", r.slot, position);
  if (kept_ == KeptRows::kLast) return LastRow(r.slot, position);
  OUTRIDER_CHECK(RankOf(r, position) == place_.rank);
  return OwnPage(PageAt(r, position), place_.ranks) * block_size_ + position % block_size_;
}

int32_t TargetHiddenRows::SkipFinished(const DraftRequest& r, int32_t m, int32_t next,
                                       int32_t limit) const {
  for (;;) {
    const int32_t block_end = (next / block_size_ + 1) * block_size_;
    if (block_end > limit) return next;
    const bool left = r.block_tables[group_][static_cast<size_t>(next / block_size_)] < 0;
    if (!left && blocks_[PageOf(r, next)].finished_modules <= m) return next;
    next = block_end;
  }
}

void TargetHiddenRows::MarkFinished(const DraftRequest& r, int32_t first,
                                    std::span<const int32_t> final_end) {
  for (int32_t start = first / block_size_ * block_size_; start + block_size_ <= final_end.front();
       start += block_size_) {
    const int32_t block_end = start + block_size_;
    const auto finished =
        std::ranges::count_if(final_end, [&](int32_t end) { return end >= block_end; });
    Block& block = blocks_[PageOf(r, start)];
    block.finished_modules = std::max(block.finished_modules, static_cast<int32_t>(finished));
  }
}

void TargetHiddenRows::ReadPage(const Ops& ops, int32_t page, std::span<std::byte> to) const {
  OUTRIDER_CHECK(std::ssize(to) == page_bytes());
  std::memcpy(to.data(), &blocks_[static_cast<size_t>(page)], sizeof(Block));
  if (KeepsRowsOf(page)) ops.CopyToHost(RowsOf(page), to.subspan(sizeof(Block)));
}

void TargetHiddenRows::WritePage(const Ops& ops, int32_t page, std::span<const std::byte> from) {
  OUTRIDER_CHECK(std::ssize(from) == page_bytes());
  std::memcpy(&blocks_[static_cast<size_t>(page)], from.data(), sizeof(Block));
  if (KeepsRowsOf(page)) ops.CopyFromHost(from.subspan(sizeof(Block)), RowsOf(page));
}

}  // namespace outrider
