#include "outrider/base/scratch.h"

#include <algorithm>

namespace outrider {

namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kSmallestChunk = size_t{1} << 20;
}  // namespace

std::byte* Scratch::TakeBytes(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + bytes + reach_ > chunks_[chunk_].size()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.push_back(allocate_(std::max({bytes + reach_, kSmallestChunk, capacity()})));
    used_ = 0;
  }
  std::byte* p = chunks_[chunk_].data() + used_;
  used_ += bytes;
  return p;
}

size_t Scratch::capacity() const {
  size_t sum = 0;
  for (const Buffer& chunk : chunks_) sum += chunk.size();
  return sum;
}

}  // namespace outrider
