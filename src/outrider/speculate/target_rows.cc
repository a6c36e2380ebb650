#include "outrider/speculate/target_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

void TargetRows::Keep(const DraftRequest& r, MatrixView<const float> hidden) {
  for (int32_t p = r.first_position; p <= r.frontier; ++p) {
    Block& block = BlockOf(r.block_table, p);
    if (p % block_size_ == 0) Enter(block);
    OUTRIDER_CHECK(block.rows, "slot {} enters a block at position {}", r.slot, p);
    std::memcpy(block.rows.get() + p % block_size_ * width_,
                hidden.row(r.first_row + p - r.first_position),
                static_cast<size_t>(width_) * sizeof(float));
  }
}

void TargetRows::Enter(Block& block) {
  block.final_modules = 0;
  if (block.rows) return;
  if (spare_.empty()) {
    block.rows.reset(new float[static_cast<size_t>(block_size_ * width_)]);
  } else {
    block.rows = std::move(spare_.back());
    spare_.pop_back();
  }
}

const float* TargetRows::Row(std::span<const int32_t> block_table, int32_t position) const {
  const Block& block = BlockOf(block_table, position);
  OUTRIDER_CHECK(block.rows, "the rows of position {}'s block are gone", position);
  return block.rows.get() + position % block_size_ * width_;
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
  // The padded form reads one row before those that are not final.
  constexpr int32_t kRowsBefore = 1;
  for (int32_t start = std::max(first - kRowsBefore, 0) / block_size_ * block_size_;
       start + block_size_ <= next.front(); start += block_size_) {
    const int32_t end = start + block_size_;
    const auto through =
        std::count_if(next.begin(), next.end(), [&](int32_t n) { return n >= end; });
    Block& block = BlockOf(block_table, start);
    block.final_modules = std::max(block.final_modules, static_cast<int32_t>(through));
    if (life_ == RowLife::kThrough && block.rows && next.back() >= end + kRowsBefore) {
      spare_.push_back(std::move(block.rows));
    }
  }
}

}  // namespace outrider
