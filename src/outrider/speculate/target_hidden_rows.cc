#include "outrider/speculate/target_hidden_rows.h"

#include <algorithm>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

TargetHiddenRows::TargetHiddenRows(const KvCache& cache, int64_t width, KeptRows kept,
                                   int32_t num_slots, int32_t num_last)
    : group_(static_cast<size_t>(cache.group_of(cache.num_layers() - 1))),
      block_size_(cache.config().groups[group_].tokens_per_block),
      width_(width),
      kept_(kept),
      num_last_(num_last),
      blocks_(static_cast<size_t>(cache.config().num_pages)) {
  OUTRIDER_CHECK(kept == KeptRows::kLast ||
                 cache.config().groups[group_].kind == CacheGroupKind::kFullHistory);
  if (kept == KeptRows::kLast) {
    last_rows_.resize(static_cast<size_t>(int64_t{num_slots} * num_last * width));
  }
}

void TargetHiddenRows::TakeStep(const DraftRequest& r, MatrixView<const float> hidden) {
  const int32_t first_block_start =
      (r.first_position + block_size_ - 1) / block_size_ * block_size_;
  for (int32_t p = first_block_start; p <= r.frontier; p += block_size_) {
    Block& block = blocks_[PageOf(r, p)];
    block.finished_modules = 0;
    if (kept_ == KeptRows::kAll && !block.rows) {
      block.rows.reset(new float[static_cast<size_t>(block_size_ * width_)]);
    }
  }
  if (kept_ == KeptRows::kLast) return;
  for (int32_t p = r.first_position; p <= r.frontier; ++p) {
    Block& block = blocks_[PageOf(r, p)];
    OUTRIDER_CHECK(block.rows, "slot {} starts inside a block, at position {}", r.slot, p);
    std::memcpy(block.rows.get() + p % block_size_ * width_,
                hidden.row(r.first_row + p - r.first_position),
                static_cast<size_t>(width_) * sizeof(float));
  }
}

void TargetHiddenRows::KeepLast(const DraftRequest& r, MatrixView<const float> hidden) {
  if (kept_ != KeptRows::kLast) return;
  for (int32_t p = std::max(r.first_position, r.frontier + 1 - num_last_); p <= r.frontier; ++p) {
    std::memcpy(&last_rows_[LastIndex(r.slot, p)], hidden.row(r.first_row + p - r.first_position),
                static_cast<size_t>(width_) * sizeof(float));
  }
}

bool TargetHiddenRows::Has(const DraftRequest& r, int32_t position) const {
  return kept_ == KeptRows::kLast ? position >= r.first_position - num_last_
                                  : blocks_[PageOf(r, position)].rows != nullptr;
}

const float* TargetHiddenRows::Row(const DraftRequest& r, int32_t position) const {
  OUTRIDER_CHECK(Has(r, position), "slot {}: the row of position {} is gone", r.slot, position);
  if (kept_ == KeptRows::kLast) return &last_rows_[LastIndex(r.slot, position)];
  return blocks_[PageOf(r, position)].rows.get() + position % block_size_ * width_;
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

}  // namespace outrider
