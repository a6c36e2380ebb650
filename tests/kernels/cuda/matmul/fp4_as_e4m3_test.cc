// FP4 weights beside the same numbers as e4m3 codes. e2m1 codes with a power of two per 32 columns
// are e4m3 codes with a power of two per block of 128x128 exactly where the exponents of a block
// span at most 14: 0.5 * 2^-8 is e4m3's least number, 6 * 2^6 below its largest. Then products have
// equal bits, by other kernels. Needs compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/matmul/matmul_world.h"

namespace outrider::cuda {
namespace {

constexpr int kSpan = 14;
constexpr float kE2m1[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};

/// The byte of a group's power of two.
uint8_t& GroupExponent(PlainWeight& w, int row, int column) {
  return w.group_scales[(static_cast<size_t>(row) * static_cast<size_t>(w.k) +
                         static_cast<size_t>(column)) /
                        32];
}

float Value(PlainWeight& w, int row, int column) {
  const size_t at =
      static_cast<size_t>(row) * static_cast<size_t>(w.k) + static_cast<size_t>(column);
  const int code = w.codes[at / 2] >> (at % 2 * 4) & 15;
  const float size = std::ldexp(kE2m1[code & 7], GroupExponent(w, row, column) - 127);
  return code < 8 ? size : -size;
}

/// The same numbers in kF8PowerOfTwo; none where a block's exponents span too much.
std::optional<PlainWeight> AsE4m3(PlainWeight& fp4, std::mt19937& random) {
  PlainWeight f8(fp4.n, fp4.k, WeightFormat::kF8PowerOfTwo, Spread::kNormal, random);
  const int blocks = PlainWeight::Blocks(fp4.k);
  for (int first_row = 0; first_row < fp4.n; first_row += 128) {
    for (int first = 0; first < fp4.k; first += 128) {
      const int end_row = std::min(first_row + 128, fp4.n);
      const int end = std::min(first + 128, fp4.k);
      int least = 255;
      int most = 0;
      for (int row = first_row; row < end_row; ++row) {
        for (int column = first; column < end; column += 32) {
          least = std::min<int>(least, GroupExponent(fp4, row, column));
          most = std::max<int>(most, GroupExponent(fp4, row, column));
        }
      }
      if (most - least > kSpan) return std::nullopt;
      const int exponent = most - 127 - 6;
      f8.scales[static_cast<size_t>(first_row / 128 * blocks + first / 128)] =
          std::ldexp(1.0F, exponent);
      for (int row = first_row; row < end_row; ++row) {
        for (int column = first; column < end; ++column) {
          f8.codes[static_cast<size_t>(row) * static_cast<size_t>(fp4.k) +
                   static_cast<size_t>(column)] =
              ToFloat8E4M3(std::ldexp(Value(fp4, row, column), -exponent));
        }
      }
    }
  }
  return f8;
}

class Fp4AsE4m3Test : public HopperTest<> {
 protected:
  /// Exponents of groups are `least` to least + span, both among those of every block.
  PlainWeight Draw(int n, int k, int least, int span) {
    PlainWeight w(n, k, WeightFormat::kFp4, Spread::kNormal, random_);
    std::uniform_int_distribution<int> exponent(least, least + span);
    for (uint8_t& byte : w.group_scales) byte = static_cast<uint8_t>(exponent(random_));
    for (int row = 0; row < n; row += 128) {
      for (int column = 0; column < k; column += 128) {
        GroupExponent(w, row, column) = static_cast<uint8_t>(least);
        GroupExponent(w, row, column + 32) = static_cast<uint8_t>(least + span);
      }
    }
    return w;
  }

  std::mt19937 random_{12};
};

TEST_F(Fp4AsE4m3Test, ProductsHaveEqualBits) {
  constexpr int kRows = 130;
  for (const auto& [n, k, segments] :
       {std::tuple{256, 1024, 1}, {320, 2048, 4}, {200, 512, 1}, {64, 512, 2}}) {
    for (const int span : {0, 6, kSpan}) {
      PlainWeight fp4 = Draw(n, k, 118, span);
      const std::optional<PlainWeight> f8 = AsE4m3(fp4, random_);
      ASSERT_TRUE(f8.has_value());
      const auto f8_at = [&](int row, int column) {
        const float scale =
            f8->scales[static_cast<size_t>(row / 128 * PlainWeight::Blocks(k) + column / 128)];
        return Float8E4M3ToFloat(f8->codes[static_cast<size_t>(row * k + column)]) * scale;
      };
      for (int row = 0; row < n; ++row) {
        for (int column = 0; column < k; ++column) {
          ASSERT_EQ(Value(fp4, row, column), f8_at(row, column)) << row << ", " << column;
        }
      }
      const DeviceArray<uint16_t> x(
          DrawBf16(static_cast<size_t>(kRows) * static_cast<size_t>(k), Spread::kNormal, random_));
      const DeviceWeight packed(fp4, nullptr, segments);
      const DeviceWeight as_e4m3(*f8, nullptr, segments);
      for (const int rows : {1, 7, 16, 33, kRows}) {
        const auto product = [&, n = n, k = k](const DeviceWeight& w) {
          const DeviceArray<float> y(static_cast<size_t>(rows) * static_cast<size_t>(n));
          MatMulParams params;
          params.rows = rows;
          params.x = x.data();
          params.x_stride = k;
          params.w = w.weight();
          params.y = y.data();
          params.y_stride = n;
          params.y_type = OutputType::kF32;
          MatMul(params, nullptr);
          CudaOk(cudaDeviceSynchronize(), "run");
          return y.Download();
        };
        ASSERT_EQ(product(packed), product(as_e4m3))
            << n << " x " << k << ", span " << span << ", " << rows << " rows";
      }
    }
  }
}

TEST_F(Fp4AsE4m3Test, ExponentsFurtherApartAreNotOfOneBlock) {
  PlainWeight fp4 = Draw(128, 256, 118, kSpan + 1);
  EXPECT_FALSE(AsE4m3(fp4, random_).has_value());
}

}  // namespace
}  // namespace outrider::cuda
