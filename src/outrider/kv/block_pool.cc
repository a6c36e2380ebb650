#include "outrider/kv/block_pool.h"

#include "outrider/base/error.h"

namespace outrider {

BlockPool::BlockPool(int32_t num_blocks) : references_(static_cast<size_t>(num_blocks), 0) {
  OUTRIDER_CHECK(num_blocks > 0);
  free_.reserve(references_.size());
  for (int32_t b = num_blocks - 1; b >= 0; --b) free_.push_back(b);
}

std::optional<int32_t> BlockPool::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::Release(int32_t block) {
  OUTRIDER_CHECK(block >= 0 && block < num_blocks());
  int32_t& count = references_[static_cast<size_t>(block)];
  OUTRIDER_CHECK(count > 0, "block {} is free already", block);
  if (--count == 0) free_.push_back(block);
}

double BlockPool::Usage() const {
  return 1.0 - static_cast<double>(num_free()) / static_cast<double>(num_blocks());
}

bool BlockTable::Reserve(BlockPool& pool, int64_t tokens, int32_t block_size) {
  const int64_t missing = BlocksFor(tokens, block_size) - static_cast<int64_t>(blocks_.size());
  if (missing > pool.num_free()) return false;
  for (int64_t i = 0; i < missing; ++i) blocks_.push_back(*pool.Allocate());
  return true;
}

void BlockTable::Clear(BlockPool& pool) {
  // The tail goes back first, so that the head is handed out first.
  for (auto it = blocks_.rbegin(); it != blocks_.rend(); ++it) pool.Release(*it);
  blocks_.clear();
}

}  // namespace outrider
