#include "outrider/speculate/target_rows.h"

#include <algorithm>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

TargetRows::TargetRows(const KvCache& cache, int64_t width, RowLife life, int32_t num_slots,
                       int32_t recent)
    : block_size_(cache.block_size()),
      width_(width),
      life_(life),
      recent_(recent),
      blocks_(static_cast<size_t>(cache.num_blocks())) {
  if (life == RowLife::kRecent) {
    recent_rows_.resize(static_cast<size_t>(int64_t{num_slots} * recent * width));
  }
}

void TargetRows::Show(const DraftRequest& r, MatrixView<const float> hidden) {
  for (int32_t p = (r.first_position + block_size_ - 1) / block_size_ * block_size_;
       p <= r.frontier; p += block_size_) {
    Block& block = BlockOf(r.block_table, p);
    block.final_modules = 0;
    if (life_ == RowLife::kContent && !block.rows) {
      block.rows.reset(new float[static_cast<size_t>(block_size_ * width_)]);
    }
  }
  if (life_ == RowLife::kRecent) return;
  for (int32_t p = r.first_position; p <= r.frontier; ++p) {
    Block& block = BlockOf(r.block_table, p);
    OUTRIDER_CHECK(block.rows, "slot {} enters a block at position {}", r.slot, p);
    std::memcpy(block.rows.get() + p % block_size_ * width_,
                hidden.row(r.first_row + p - r.first_position),
                static_cast<size_t>(width_) * sizeof(float));
  }
}

void TargetRows::KeepRecent(const DraftRequest& r, MatrixView<const float> hidden) {
  if (life_ != RowLife::kRecent) return;
  for (int32_t p = std::max(r.first_position, r.frontier + 1 - recent_); p <= r.frontier; ++p) {
    std::memcpy(&recent_rows_[RecentIndex(r.slot, p)],
                hidden.row(r.first_row + p - r.first_position),
                static_cast<size_t>(width_) * sizeof(float));
  }
}

bool TargetRows::Holds(const DraftRequest& r, int32_t position) const {
  return life_ == RowLife::kRecent ? position >= r.first_position - recent_
                                   : BlockOf(r.block_table, position).rows != nullptr;
}

const float* TargetRows::Row(const DraftRequest& r, int32_t position) const {
  OUTRIDER_CHECK(Holds(r, position), "slot {}: the row of position {} is gone", r.slot, position);
  if (life_ == RowLife::kRecent) return &recent_rows_[RecentIndex(r.slot, position)];
  return BlockOf(r.block_table, position).rows.get() + position % block_size_ * width_;
}

int32_t TargetRows::SkipFinal(std::span<const int32_t> block_table, int32_t m, int32_t next,
                              int32_t limit) const {
  for (;;) {
    const int32_t end = (next / block_size_ + 1) * block_size_;
    if (end > limit) return next;
    if (BlockOf(block_table, next).final_modules <= m) return next;
    next = end;
  }
}

void TargetRows::SetFinal(std::span<const int32_t> block_table, int32_t first,
                          std::span<const int32_t> next) {
  for (int32_t start = first / block_size_ * block_size_; start + block_size_ <= next.front();
       start += block_size_) {
    const int32_t end = start + block_size_;
    const auto through =
        std::count_if(next.begin(), next.end(), [&](int32_t n) { return n >= end; });
    Block& block = BlockOf(block_table, start);
    block.final_modules = std::max(block.final_modules, static_cast<int32_t>(through));
  }
}

}  // namespace outrider
