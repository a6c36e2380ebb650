#include "outrider/kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

TEST(PackedMatrix, SizesCountWholePanelsAndWholePairs) {
  EXPECT_EQ(PanelBytes(DType::kF32, 5), 5u * 16 * 4);
  EXPECT_EQ(PanelBytes(DType::kBF16, 5), 6u * 16 * 2);
  EXPECT_EQ(PanelBytes(DType::kBF16, 6), 6u * 16 * 2);
  EXPECT_EQ(PackedBytes(DType::kBF16, 17, 6), 2 * PanelBytes(DType::kBF16, 6));
  EXPECT_EQ(PackedBytes(DType::kF32, 16, 3), PanelBytes(DType::kF32, 3));
  EXPECT_EQ(PackedBytes(DType::kF32, 0, 3), 0u);
}

TEST(PackedMatrix, ElementsLieWhereTheLayoutSays) {
  for (const int64_t count : {1, 7, 16}) {
    for (const int64_t cols : {1, 2, 5, 8}) {
      std::vector<float> rows(static_cast<size_t>(count * cols));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i + 1);
      std::vector<std::byte> f32(PanelBytes(DType::kF32, cols), std::byte{0xff});
      std::vector<std::byte> bf16(PanelBytes(DType::kBF16, cols), std::byte{0xff});
      PackPanel(DType::kF32, rows.data(), count, cols, f32.data());
      PackPanel(DType::kBF16, rows.data(), count, cols, bf16.data());
      const auto* f = reinterpret_cast<const float*>(f32.data());
      const auto* b = reinterpret_cast<const BFloat16*>(bf16.data());
      for (int64_t n = 0; n < 16; ++n) {
        for (int64_t k = 0; k < (cols + 1) / 2 * 2; ++k) {
          const bool present = n < count && k < cols;
          const float want = present ? rows[static_cast<size_t>(n * cols + k)] : 0.0f;
          if (k < cols) {
            EXPECT_EQ(f[k * 16 + n], want) << n << ' ' << k;
          }
          EXPECT_EQ(ToFloat(b[k / 2 * 32 + n * 2 + k % 2]), want) << n << ' ' << k;
        }
      }
    }
  }
}

TEST(PackedMatrix, BFloat16RoundsToNearestEven) {
  const float rows[] = {1.00390625f, 1.01171875f, -1.005859375f, 3.0f};
  std::vector<std::byte> panel(PanelBytes(DType::kBF16, 4));
  PackPanel(DType::kBF16, rows, 1, 4, panel.data());
  const auto* b = reinterpret_cast<const BFloat16*>(panel.data());
  EXPECT_EQ(ToFloat(b[0]), 1.0f);
  EXPECT_EQ(ToFloat(b[1]), 1.015625f);
  EXPECT_EQ(ToFloat(b[32]), -1.0078125f);
  EXPECT_EQ(ToFloat(b[33]), 3.0f);
}

}  // namespace
}  // namespace outrider
