#include "outrider/kv/block_pool.h"

#include "outrider/base/error.h"

namespace outrider {

BlockPool::BlockPool(int32_t num_blocks, const RankPlace& place)
    : place_(place),
      references_(static_cast<size_t>(num_blocks), 0),
      index_(num_blocks),
      idle_(static_cast<size_t>(num_blocks) + 1, {num_blocks, num_blocks}) {
  OUTRIDER_CHECK(num_blocks > 0);
  unpublished_.reserve(references_.size());
  for (int32_t b = num_blocks - 1; b >= 0; --b) unpublished_.push_back(b);
}

void BlockPool::Link(int32_t block) {
  Neighbours& ring = idle_.back();
  idle_[static_cast<size_t>(block)] = {ring.before, num_blocks()};
  idle_[static_cast<size_t>(ring.before)].after = block;
  ring.before = block;
  ++num_idle_;
}

void BlockPool::Unlink(int32_t block) {
  const auto [before, after] = idle_[static_cast<size_t>(block)];
  idle_[static_cast<size_t>(before)].after = after;
  idle_[static_cast<size_t>(after)].before = before;
  --num_idle_;
}

std::optional<int32_t> BlockPool::Allocate() {
  int32_t block = 0;
  if (!unpublished_.empty()) {
    block = unpublished_.back();
    unpublished_.pop_back();
  } else if (num_idle_ > 0) {
    block = idle_.back().after;
    Unlink(block);
    const BlockKey& key = index_.KeyOf(block);
    if (log_ != nullptr) log_->push_back({BlockPoolEvent::Kind::kRemoved, key});
    if (leaves_) leaves_(PageNumber(block, place_), key);
    index_.Erase(block);
  } else {
    return std::nullopt;
  }
  references_[static_cast<size_t>(block)] = 1;
  return PageNumber(block, place_);
}

void BlockPool::Release(int32_t number) {
  const int32_t block = OwnPage(number, place_.ranks);
  OUTRIDER_CHECK(number >= 0 && block < num_blocks() && number == PageNumber(block, place_));
  int32_t& count = references_[static_cast<size_t>(block)];
  OUTRIDER_CHECK(count > 0, "block {} is free already", number);
  if (--count > 0) return;
  if (index_.Holds(block)) {
    Link(block);
  } else {
    unpublished_.push_back(block);
  }
}

void BlockPool::Publish(int32_t block, const BlockKey& key) {
  OUTRIDER_CHECK(references(block) > 0);
  if (index_.Insert(key, OwnPage(block, place_.ranks)) && log_ != nullptr) {
    log_->push_back({BlockPoolEvent::Kind::kStored, key});
  }
}

void BlockPool::ForgetPublished() {
  for (int32_t block = 0; block < num_blocks(); ++block) {
    if (!index_.Holds(block)) continue;
    index_.Erase(block);
    if (references_[static_cast<size_t>(block)] > 0) continue;
    Unlink(block);
    unpublished_.push_back(block);
  }
  if (log_ != nullptr) log_->push_back({BlockPoolEvent::Kind::kCleared, {}});
}

std::optional<int32_t> BlockPool::Share(const BlockKey& key) {
  const std::optional<int32_t> block = index_.Find(key);
  if (!block) return std::nullopt;
  if (references_[static_cast<size_t>(*block)]++ == 0) Unlink(*block);
  return PageNumber(*block, place_);
}

double BlockPool::Usage() const {
  return 1.0 - static_cast<double>(num_free()) / static_cast<double>(num_blocks());
}

}  // namespace outrider
