#include "outrider/base/scratch.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kSmallestChunk = size_t{1} << 20;
// What grows doubles, but for no more than this: it is a device's memory, too.
constexpr size_t kMostSpare = size_t{256} << 20;
}  // namespace

std::byte* Scratch::TakeBytes(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + bytes + reach_ > chunks_[chunk_].size()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.push_back(
        allocate_(std::max({bytes + reach_, kSmallestChunk, std::min(capacity(), kMostSpare)})));
    used_ = 0;
  }
  std::byte* p = chunks_[chunk_].data() + used_;
  used_ += bytes;
  taken_ += bytes;
  most_taken_ = std::max(most_taken_, taken_);
  return p;
}

void Scratch::Fit() {
  OUTRIDER_CHECK(taken_ == 0);
  chunks_.clear();
  if (most_taken_ > 0) chunks_.push_back(allocate_(most_taken_ + reach_));
  chunk_ = 0;
  used_ = 0;
}

size_t Scratch::capacity() const {
  size_t sum = 0;
  for (const Buffer& chunk : chunks_) sum += chunk.size();
  return sum;
}

}  // namespace outrider
