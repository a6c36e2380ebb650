#include "outrider/kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "outrider/base/buffer.h"

namespace outrider {
namespace {

TEST(PackedMatrix, SizesCountWholePanelsAndWholePairs) {
  EXPECT_EQ(PanelBytes(DType::kF32, 5), 5u * 16 * 4);
  EXPECT_EQ(PanelBytes(DType::kBF16, 5), 6u * 16 * 2);
  EXPECT_EQ(PanelBytes(DType::kBF16, 6), 6u * 16 * 2);
  EXPECT_EQ(PackedBytes({.dtype = DType::kBF16}, 17, 6), 2 * PanelBytes(DType::kBF16, 6));
  EXPECT_EQ(PackedBytes({.dtype = DType::kF32}, 16, 3), PanelBytes(DType::kF32, 3));
  EXPECT_EQ(PackedBytes({.dtype = DType::kF32}, 0, 3), 0u);
}

TEST(PackedMatrix, ScalesOfEightBitFormatsLieBehindThePanels) {
  const PackedFormat fp8 = {.dtype = DType::kF8E4M3, .scale_cols = 128};
  EXPECT_EQ(PanelBytes(DType::kF8E4M3, 260), 260u * 16);
  EXPECT_EQ(ScalesPerPanel(fp8, 260), 3);
  EXPECT_EQ(PackedBytes(fp8, 33, 260), 3u * 260 * 16 + 64) << "nine scales, in whole cache lines";
  EXPECT_EQ(PackedBytes({.dtype = DType::kI8}, 33, 260), 3u * 260 * 16 + 3 * 64);
  Buffer storage(PackedBytes(fp8, 33, 260));
  const PackedMatrix w = {.format = fp8, .rows = 33, .cols = 260, .data = storage.data()};
  EXPECT_EQ(reinterpret_cast<const std::byte*>(w.scales(0)), storage.data() + 3 * 260 * 16);
  EXPECT_EQ(w.scales(2), w.scales(0) + 6);
}

TEST(PackedMatrix, CodesOfEightBitsLieWhereTheLayoutSays) {
  for (const int64_t count : {1, 9, 16}) {
    const int64_t cols = 8;
    std::vector<uint8_t> codes(static_cast<size_t>(count * cols));
    std::vector<float> rows(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<uint8_t>(i);
      rows[i] = static_cast<float>(static_cast<int>(i % 255) - 127);
    }
    for (int64_t n = 0; n < count; ++n) rows[static_cast<size_t>(n * cols)] = -127;
    std::vector<std::byte> fp8(PanelBytes(DType::kF8E4M3, cols), std::byte{0xff});
    std::vector<std::byte> int8(PanelBytes(DType::kI8, cols), std::byte{0xff});
    float scales[16] = {};
    PackFp8Panel(codes.data(), count, cols, fp8.data());
    PackInt8Panel(rows.data(), count, cols, int8.data(), scales);
    for (int64_t n = 0; n < 16; ++n) {
      EXPECT_EQ(scales[n], n < count ? 1.0F : 0.0F);
      for (int64_t k = 0; k < cols; ++k) {
        const auto i = static_cast<size_t>(n * cols + k);
        EXPECT_EQ(static_cast<uint8_t>(fp8[k / 2 * 32 + n % 8 * 4 + n / 8 * 2 + k % 2]),
                  n < count ? codes[i] : 0);
        EXPECT_EQ(static_cast<int8_t>(int8[k * 16 + n]), n < count ? rows[i] : 0);
      }
    }
  }
}

TEST(PackedMatrix, CodesOfFourBitsLieWhereTheLayoutSaysWithTheirExponentsBehind) {
  const int64_t cols = 64;
  const int64_t rows = 19;
  const PackedFormat fp4 = {.dtype = DType::kF4E2M1};
  EXPECT_EQ(PanelBytes(DType::kF4E2M1, cols), 64u / 2 * 16);
  ASSERT_EQ(PackedBytes(fp4, rows, cols), 2u * 512 + 64) << "four groups of 16 exponents";
  Buffer storage(PackedBytes(fp4, rows, cols));
  std::memset(storage.data(), 0xff, storage.size());
  const PackedMatrix w = {.format = fp4, .rows = rows, .cols = cols, .data = storage.data()};
  std::vector<uint8_t> codes(rows * cols / 2);
  std::vector<uint8_t> exponents(rows * 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7);
  for (size_t i = 0; i < exponents.size(); ++i) exponents[i] = static_cast<uint8_t>(100 + i);
  PackFourBitPanel(w, 0, codes.data(), exponents.data(), 16);
  PackFourBitPanel(w, 1, codes.data() + 16 * 32, exponents.data() + 32, 3);
  EXPECT_EQ(w.group_scales(1), reinterpret_cast<const uint8_t*>(storage.data()) + 1024 + 32);
  for (int64_t n = 0; n < 32; ++n) {
    for (int64_t k = 0; k < cols; ++k) {
      // Columns 8 * j, + 2, + 4, + 6, then 8 * j + 1, ... are the word's codes from the lowest on.
      const int64_t place = k % 2 * 4 + k % 8 / 2;
      const auto byte =
          static_cast<uint8_t>(storage.data()[n / 16 * 512 + k / 8 * 64 + n % 16 * 4 + place / 2]);
      const int packed = n < rows ? codes[static_cast<size_t>(n * 32 + k / 2)] : 0;
      EXPECT_EQ(place % 2 == 0 ? byte & 15 : byte >> 4, k % 2 == 0 ? packed & 15 : packed >> 4);
    }
    for (int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(w.group_scales(n / 16)[g * 16 + n % 16],
                n < rows ? exponents[static_cast<size_t>(n * 2 + g)] : 127);
    }
  }
}

TEST(PackedMatrix, Int8RoundsToMultiplesOfTheLargestMagnitudeBy127) {
  // Halves go to the even neighbour; a row of zeros stays zero.
  const float rows[] = {254.0F, -3.0F, 5.0F, 0.9F, 0, 0, 0, 0, -1e-44F, 1e-44F, 0, 0};
  std::vector<std::byte> panel(PanelBytes(DType::kI8, 4));
  float scales[16];
  PackInt8Panel(rows, 3, 4, panel.data(), scales);
  const auto code = [&](int64_t n, int64_t k) { return static_cast<int8_t>(panel[k * 16 + n]); };
  EXPECT_EQ(scales[0], 2.0F);
  EXPECT_EQ(code(0, 0), 127);
  EXPECT_EQ(code(0, 1), -2);
  EXPECT_EQ(code(0, 2), 2);
  EXPECT_EQ(code(0, 3), 0);
  EXPECT_EQ(scales[1], 0.0F);
  EXPECT_EQ(code(1, 0), 0);
  EXPECT_LE(std::abs(code(2, 0)), 127) << "the scale underflows";
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
