// Rows in a device's memory that outlive a call, and copies between rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/ops/tensor.h"

namespace outrider {

/// Rows that a device keeps (Ops::MakeRows).
class RowMemory {
 public:
  /// memory: of at least [rows, cols].
  RowMemory(Buffer memory, DType type, int64_t rows, int64_t cols)
      : memory_(std::move(memory)), rows_(memory_.data(), type, rows, cols, cols) {}

  Tensor rows() const { return rows_; }

 private:
  Buffer memory_;
  Tensor rows_;
};

/// Which row is copied to which: to[i] = from[i]. A value -2 - place in `from` stands for the row
/// whose number the device keeps at that place (tokens_on_device.h).
class RowCopies {
 public:
  void Add(int64_t from, int64_t to) {
    from_.push_back(static_cast<int32_t>(from));
    to_.push_back(static_cast<int32_t>(to));
  }
  void AddFromPlace(int32_t place, int64_t to) { Add(-2 - int64_t{place}, to); }
  void clear() {
    from_.clear();
    to_.clear();
  }

  std::span<const int32_t> from() const { return from_; }
  std::span<const int32_t> to() const { return to_; }

 private:
  std::vector<int32_t> from_;
  std::vector<int32_t> to_;
};

}  // namespace outrider
