// A paged cache for tests: requests on shuffled blocks, blocks with room for other layers between
// them, and NaN in everything that was never written.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace outrider {

class PagedCache {
 public:
  PagedCache(DType dtype, int32_t block_size, int32_t width, int32_t blocks, std::mt19937& random)
      : dtype_(dtype),
        block_size_(block_size),
        width_(width),
        block_stride_((int64_t{block_size} + 3) * width),
        storage_(static_cast<size_t>(blocks * block_stride_) * DTypeSize(dtype)),
        free_(static_cast<size_t>(blocks)) {
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random);
    for (int64_t i = 0; i < blocks * block_stride_; ++i) Set(i, kNaN);
  }

  LayerCache cache() {
    return {.data = storage_.data(),
            .dtype = dtype_,
            .block_size = block_size_,
            .width = width_,
            .block_stride = block_stride_};
  }

  /// A block table for `positions` positions, of blocks that no other request has.
  std::vector<int32_t> Allocate(int64_t positions) {
    std::vector<int32_t> table;
    for (int64_t i = 0; i * block_size_ < positions; ++i) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }

  int64_t Slot(const std::vector<int32_t>& table, int64_t position) const {
    return int64_t{table[static_cast<size_t>(position / block_size_)]} * block_size_ +
           position % block_size_;
  }

  /// The first element of the entry at a position.
  int64_t Element(const std::vector<int32_t>& table, int64_t position) {
    return cache().SlotOffset(Slot(table, position));
  }

  void Fill(const std::vector<int32_t>& table, int64_t first, int64_t last, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t p = first; p < last; ++p) {
      for (int64_t i = 0; i < width_; ++i) Set(Element(table, p) + i, normal(random));
    }
  }

  void Poison(const std::vector<int32_t>& table, int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      for (int64_t i = 0; i < width_; ++i) Set(Element(table, p) + i, kNaN);
    }
  }

  float Get(int64_t i) const {
    if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(storage_.data())[i];
    return ToFloat(reinterpret_cast<const BFloat16*>(storage_.data())[i]);
  }

  void Set(int64_t i, float value) {
    if (dtype_ == DType::kF32) {
      reinterpret_cast<float*>(storage_.data())[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(storage_.data())[i] = ToBFloat16(value);
    }
  }

 private:
  DType dtype_;
  int32_t block_size_;
  int32_t width_;
  int64_t block_stride_;
  std::vector<std::byte> storage_;
  std::vector<int32_t> free_;
};

}  // namespace outrider
