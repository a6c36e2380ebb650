// Three or four rows of x times three panels of bfloat16 weights. Include in AVX2 leaves only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::cpu::avx2 {

/// Most k's that these tiles are for: the three panels then stay in L1.
inline constexpr int64_t kThreePanelsMostK = 256;

struct ThreePanelTile {
  const std::byte* w = nullptr;     // three panels, and after them what to fetch for the next call
  const float* const* x = nullptr;  // a pointer per row
  int64_t count_k = 0;              // even, 2 .. kThreePanelsMostK
  float* sums = nullptr;            // row r at sums + r * row_sums: 48 sums, written
  int64_t row_sums = 0;
};

void MultiplyThreeRows(const ThreePanelTile& tile);
void MultiplyFourRows(const ThreePanelTile& tile);

}  // namespace outrider::cpu::avx2
