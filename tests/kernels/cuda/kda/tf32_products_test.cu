// Products on tensor cores of float32 numbers in two parts of TF32 (kda_instructions.cuh): sums are
// near double precision. Needs compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

/// One warp: out [kRows, kColumns] = a [kRows, kDepth] by b [kColumns, kDepth].
__global__ void __launch_bounds__(32) SplitProducts(const float* a, const float* b, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  float sums[4] = {};
  float low_sums[4] = {};
  for (int k = lane % 4; k < kDepth; k += 8) {
    uint32_t high[4];
    uint32_t low[4];
    for (int i = 0; i < 4; ++i) {
      const Tf32Parts parts = SplitForTf32(a[(g + i % 2 * 8) * kDepth + k + i / 2 * 4]);
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
  std::vector<float> Draw(int rows) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(rows) * kDepth);
    for (float& x : values) x = normal(random_);
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
    const std::vector<float> a = Draw(kRows), b = Draw(kColumns);
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

}  // namespace
}  // namespace outrider::cuda
