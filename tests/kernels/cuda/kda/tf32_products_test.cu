// What the pass of Kimi Delta Attention rests on: a number of a product of TF32 on tensor cores
// depends on its row and its column alone, wherever the column stands and whatever the others are.
// Sums of split products are near double precision. Needs compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "outrider/kernels/cuda/kda/kda_instructions.cuh"
#include "outrider/kernels/cuda/kda/tf32_parts.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kDepth = 128;

/// One warp: out [kRows, kColumns] = a [kRows, kDepth] by b [kColumns, kDepth], with a split as a
/// state is.
__global__ void __launch_bounds__(32) SplitProducts(const float* a, const float* b, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  float sums[4] = {};
  float low_sums[4] = {};
  for (int k = lane % 4; k < kDepth; k += 8) {
    uint32_t high[4];
    uint32_t low[4];
    for (int i = 0; i < 4; ++i) {
      const Tf32Parts parts = CutForTf32(a[(g + i % 2 * 8) * kDepth + k + i / 2 * 4]);
      high[i] = parts.high;
      low[i] = parts.low;
    }
    uint32_t column_high[2];
    uint32_t column_low[2];
    for (int i = 0; i < 2; ++i) {
      const Tf32Parts parts = SplitForTf32(b[g * kDepth + k + i * 4]);
      column_high[i] = parts.high;
      column_low[i] = parts.low;
    }
    MultiplyTf32(low_sums, low, column_high);
    MultiplyTf32(sums, high, column_high);
    MultiplyTf32(low_sums, high, column_low);
  }
  for (int i = 0; i < 4; ++i) {
    out[(g + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2] = __fadd_rn(sums[i], low_sums[i]);
  }
}

class Tf32ProductsTest : public HopperTest<> {
 protected:
  std::vector<float> Draw(int rows, int exponents) {
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-exponents, exponents);
    std::vector<float> values(static_cast<size_t>(rows) * kDepth);
    for (float& x : values) x = std::ldexp(normal(random_), exponent(random_));
    return values;
  }

  static std::vector<float> Run(const std::vector<float>& a, const std::vector<float>& b) {
    const DeviceArray<float> d_a(a), d_b(b);
    const DeviceArray<float> out(static_cast<size_t>(kRows) * kColumns);
    SplitProducts<<<1, 32>>>(d_a.data(), d_b.data(), out.data());
    CudaOk(cudaGetLastError(), "launch");
    CudaOk(cudaDeviceSynchronize(), "run");
    return out.Download();
  }

  std::mt19937 random_{17};
};

TEST_F(Tf32ProductsTest, AreNearDoublePrecision) {
  double worst = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<float> a = Draw(kRows, 0), b = Draw(kColumns, 0);
    const std::vector<float> got = Run(a, b);
    for (int i = 0; i < kRows * kColumns; ++i) {
      double sum = 0, size = 0;
      for (int k = 0; k < kDepth; ++k) {
        const double term = double{a[i / kColumns * kDepth + k]} * b[i % kColumns * kDepth + k];
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(got[i] - sum) / size);
    }
  }
  RecordProperty("worst_error_of_terms", std::to_string(worst));
  EXPECT_LT(worst, 3e-7);
}

TEST_F(Tf32ProductsTest, AColumnsBitsAreItsOwn) {
  for (const int exponents : {0, 30}) {
    for (int trial = 0; trial < 20; ++trial) {
      const std::vector<float> a = Draw(kRows, exponents), b = Draw(kColumns, exponents);
      const std::vector<float> expected = Run(a, b);
      for (int place = 0; place < kColumns; ++place) {
        const int column = static_cast<int>(random_() % kColumns);
        // Beside zeros, other numbers, or what is no number.
        std::vector<float> alone(b.size(), trial % 3 == 0 ? 0.0F : NAN);
        if (trial % 3 == 1) alone = Draw(kColumns, exponents);
        std::copy_n(b.begin() + column * kDepth, kDepth, alone.begin() + place * kDepth);
        const std::vector<float> got = Run(a, alone);
        for (int row = 0; row < kRows; ++row) {
          ASSERT_EQ(std::memcmp(&got[row * kColumns + place], &expected[row * kColumns + column],
                                sizeof(float)),
                    0)
              << "row " << row << ", column " << column << " at " << place;
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
