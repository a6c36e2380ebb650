// What attention over entries gave to the rows of a step, by request and position.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/sparse/sparse_world.h"

namespace outrider::cuda {

inline constexpr int kAttendedDim = 512;  // numbers that attention gives to a head

struct AttendedRow {
  std::vector<uint16_t> output;  // [heads, kAttendedDim]
  std::vector<float> lse;        // [heads]
  bool operator==(const AttendedRow&) const = default;
};
using AttendedRows = std::map<std::pair<int, int>, AttendedRow>;

/// Of the rows of `step`, which come first in the arrays.
inline AttendedRows DownloadRows(const std::vector<SparseRow>& step, int heads,
                                 const DeviceArray<uint16_t>& output,
                                 const DeviceArray<float>& lse) {
  const std::vector<uint16_t> outputs = output.Download();
  const std::vector<float> lses = lse.Download();
  AttendedRows rows;
  for (size_t i = 0; i < step.size(); ++i) {
    const auto begin = outputs.begin() + static_cast<int64_t>(i) * heads * kAttendedDim;
    const auto lse_begin = lses.begin() + static_cast<int64_t>(i) * heads;
    rows[{step[i].request, step[i].position}] = {{begin, begin + int64_t{heads} * kAttendedDim},
                                                 {lse_begin, lse_begin + heads}};
  }
  return rows;
}

inline void ExpectParts(const AttendedRows& some, const AttendedRows& all, const char* what) {
  ASSERT_FALSE(some.empty()) << what;
  for (const auto& [at, row] : some) {
    ASSERT_TRUE(row == all.at(at))
        << what << ": request " << at.first << ", position " << at.second;
  }
}

/// One head of the row at `at`, which attends to `entries` of size 1 or so. Weights and results are
/// rounded to 8 bits.
template <typename Number>
void ExpectHead(const AttendedRows::value_type& row, int head, const std::vector<Number>& output,
                double lse, size_t entries) {
  const auto& [at, got] = row;
  ASSERT_NEAR(got.lse[static_cast<size_t>(head)], lse, 1e-4 * (1 + std::abs(lse)))
      << "request " << at.first << ", position " << at.second << ", head " << head;
  for (int d = 0; d < kAttendedDim; ++d) {
    const Number wanted = output[static_cast<size_t>(d)];
    ASSERT_NEAR(Bf16ToFloat(got.output[static_cast<size_t>(head) * kAttendedDim + d]), wanted,
                0.008 + 0.008 * std::abs(wanted))
        << "request " << at.first << ", position " << at.second << ", head " << head << ", column "
        << d << ", " << entries << " entries";
  }
}

}  // namespace outrider::cuda
