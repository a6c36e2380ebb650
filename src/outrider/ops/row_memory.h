// Rows in a device's memory that outlive a call, and copies between rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "outrider/ops/tensor.h"

namespace outrider {

/// Rows that a device keeps (Ops::MakeRows). They cost memory only once they are written.
class RowMemory {
 public:
  virtual ~RowMemory() = default;

  Tensor rows() const { return rows_; }

 protected:
  Tensor rows_;
};

/// Which row is copied to which: to[i] = from[i].
class RowCopies {
 public:
  void Add(int64_t from, int64_t to) {
    from_.push_back(static_cast<int32_t>(from));
    to_.push_back(static_cast<int32_t>(to));
  }
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
