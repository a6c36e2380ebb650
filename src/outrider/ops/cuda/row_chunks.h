// Rows in chunks, one after another: how a gather of many rows is cut.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider::cuda {

class RowChunks {
 public:
  static constexpr int kMost = 8;

  RowChunks() = default;  // none
  /// Up to `most` chunks of `rows` rows, of about as many each; all but the last are a multiple of
  /// `unit` rows. One at least.
  RowChunks(int64_t rows, int64_t unit, int64_t most) {
    const int64_t units = std::max<int64_t>((rows + unit - 1) / unit, 1);
    const int64_t wanted = std::clamp<int64_t>(most, 1, std::min<int64_t>(kMost, units));
    const int64_t each = (units + wanted - 1) / wanted * unit;
    do {
      ends_[static_cast<size_t>(count_)] = std::min(rows, (count_ + 1) * each);
    } while (ends_[static_cast<size_t>(count_++)] < rows);
  }

  int count() const { return count_; }
  int64_t first(int chunk) const { return chunk == 0 ? 0 : end(chunk - 1); }
  int64_t end(int chunk) const { return ends_[static_cast<size_t>(chunk)]; }
  int64_t rows(int chunk) const { return end(chunk) - first(chunk); }
  bool operator==(const RowChunks&) const = default;

 private:
  std::array<int64_t, kMost> ends_ = {};
  int count_ = 0;
};

}  // namespace outrider::cuda
