// rms_norm, silu_mul, rotate, combine_experts: every table against formulas in double, and each
// row's bits alone, in batches and on other numbers of threads.

#include <cmath>
#include <utility>

#include "outrider/base/rounded_exp.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {
namespace {

class RowKernelsTest : public KernelTest {};

/// |a - b| in units of the last place of b.
double UlpsApart(float a, double b) {
  const auto rounded = static_cast<float>(b);
  const float ulp = std::nextafter(std::abs(rounded), INFINITY) - std::abs(rounded);
  return std::abs(a - b) / ulp;
}

TEST_P(RowKernelsTest, RmsNormFollowsItsFormulaAtEveryWidth) {
  for (int64_t n = 1; n <= 70; ++n) {
    const TestMatrix x = TestMatrix::Random(3, n, random, Pick(0, 5));
    const TestMatrix weight = TestMatrix::Random(1, n, random);
    TestMatrix y(3, n, 3);
    y.values.assign(y.values.size(), 7.0f);
    kernels.rms_norm(pool, x.view(), weight.values.data(), 1e-5f, y.view());
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::pow(double{x.view().row(r)[i]}, 2);
      const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + double{1e-5f});
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_LE(UlpsApart(y.view().row(r)[i], double{weight.values[static_cast<size_t>(i)]} *
                                                    x.view().row(r)[i] * scale),
                  6);
      }
      for (int64_t i = n; i < y.stride; ++i) EXPECT_EQ(y.view().row(r)[i], 7.0f);
    }
  }
}

TEST_P(RowKernelsTest, RmsNormWorksInPlaceAndRowByRow) {
  const TestMatrix x = TestMatrix::Random(200, 257, random);
  const TestMatrix weight = TestMatrix::Random(1, 257, random);
  TestMatrix together(200, 257);
  kernels.rms_norm(pool, x.view(), weight.values.data(), 1e-6f, together.view());
  TestMatrix in_place = x;
  kernels.rms_norm(pool, in_place.view(), weight.values.data(), 1e-6f, in_place.view());
  EXPECT_TRUE(SameBits(in_place.values.data(), together.values.data(), 200 * 257));
  for (int64_t r = 0; r < 200; ++r) {
    TestMatrix alone(1, 257, 1);
    kernels.rms_norm(single, x.view().Rows(r, 1), weight.values.data(), 1e-6f, alone.view());
    ASSERT_TRUE(SameBits(alone.values.data(), together.view().row(r), 257)) << r;
  }
}

TEST_P(RowKernelsTest, SiluMulIsAccurateOverTheWholeRangeOfFloats) {
  std::vector<float> gates = {0.0f, -0.0f, 1e-40f, 88.0f, -87.4f, -88.8f, -103.5f, -105.0f, 1e30f};
  for (float v = -100; v < 100; v += 0.0137f) gates.push_back(v);
  const auto n = static_cast<int64_t>(gates.size());
  TestMatrix x(1, 2 * n);
  std::copy(gates.begin(), gates.end(), x.values.begin());
  std::fill(x.values.begin() + n, x.values.end(), 1.0f);
  TestMatrix y(1, n);
  kernels.silu_mul(pool, x.view(), kNoLimit, y.view());
  for (int64_t i = 0; i < n; ++i) {
    const double g = gates[static_cast<size_t>(i)];
    // exp(-g) overflows float below -88.7: the result is then 0 instead of less than 1e-36.
    if (g < -88) {
      EXPECT_NEAR(y.values[static_cast<size_t>(i)], 0, 1e-36) << g;
    } else {
      EXPECT_LE(UlpsApart(y.values[static_cast<size_t>(i)], g / (1 + std::exp(-g))), 3) << g;
    }
  }
  x.values[0] = kNaN;
  x.values[1] = -std::numeric_limits<float>::infinity();
  x.values[2] = std::numeric_limits<float>::infinity();
  kernels.silu_mul(pool, x.view(), kNoLimit, y.view());
  EXPECT_TRUE(std::isnan(y.values[0]));
  EXPECT_TRUE(std::isnan(y.values[1])) << "-inf / inf";
  EXPECT_EQ(y.values[2], std::numeric_limits<float>::infinity());
}

TEST_P(RowKernelsTest, SiluMulRowsDoNotDependOnTheBatch) {
  for (const int64_t n : {7, 640, 5000}) {
    const TestMatrix x = TestMatrix::Random(40, 2 * n, random, 1);
    TestMatrix together(40, n, 3);
    kernels.silu_mul(pool, x.view(), kNoLimit, together.view());
    for (int64_t r = 0; r < 40; ++r) {
      TestMatrix alone(1, n);
      kernels.silu_mul(single, x.view().Rows(r, 1), kNoLimit, alone.view());
      ASSERT_TRUE(SameBits(alone.values.data(), together.view().row(r), n));
    }
  }
}

TEST_P(RowKernelsTest, SiluMulCutsTheGateFromAboveAndTheOtherFactorOnBothSides) {
  constexpr float kLimit = 1.5f;
  for (const int64_t n : {1, 7, 300}) {
    TestMatrix x = TestMatrix::Random(5, 2 * n, random, 1);
    for (float& v : x.values) v *= 4;
    TestMatrix y(5, n);
    kernels.silu_mul(pool, x.view(), kLimit, y.view());
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const double gate = x.view().row(r)[i];
        const double up = x.view().row(r)[n + i];
        const double want = std::min(gate / (1 + std::exp(-gate)), double{kLimit}) *
                            std::clamp(up, -double{kLimit}, double{kLimit});
        EXPECT_LE(UlpsApart(y.view().row(r)[i], want), 4) << gate << " " << up;
      }
    }
  }
  TestMatrix x(1, 8);
  x.values = {kNaN, 1, -1, 100, 1, kNaN, 0, -100};
  TestMatrix y(1, 4);
  kernels.silu_mul(pool, x.view(), kLimit, y.view());
  EXPECT_TRUE(std::isnan(y.values[0]));
  EXPECT_TRUE(std::isnan(y.values[1]));
  EXPECT_EQ(y.values[3], -kLimit * kLimit);
}

TEST_P(RowKernelsTest, GateHeadsHasTheReferencesBits) {
  for (const auto& [heads, n] : {std::pair{1, 1}, {3, 7}, {96, 128}}) {
    const TestMatrix gates = TestMatrix::Random(9, heads, random, 1);
    const TestMatrix before = TestMatrix::Random(9, int64_t{heads} * n, random, 2);
    TestMatrix x = before;
    kernels.gate_heads(pool, gates.view(), x.view());
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t i = 0; i < int64_t{heads} * n; ++i) {
        EXPECT_EQ(x.view().row(r)[i],
                  before.view().row(r)[i] * Sigmoid(gates.view().row(r)[i / n]));
      }
    }
  }
  EXPECT_NEAR(Sigmoid(0.7f), 1 / (1 + std::exp(-0.7)), 1e-7);
  EXPECT_EQ(Sigmoid(-200.0f), 0);
  EXPECT_EQ(Sigmoid(200.0f), 1);
}

TEST_P(RowKernelsTest, RotateTurnsPairsAndLeavesTheRest) {
  for (const bool interleaved : {true, false}) {
    for (const int64_t half : {1, 3, 4, 8, 13, 32}) {
      const int32_t groups = Pick(1, 5);
      const int32_t offset = Pick(0, 9);
      const int32_t group_stride = offset + static_cast<int32_t>(2 * half) + Pick(0, 3);
      const int64_t rows = Pick(1, 40);
      const TestMatrix before = TestMatrix::Random(rows, groups * group_stride, random, 1);
      const TestMatrix cos = TestMatrix::Random(rows, half, random, 2);
      const TestMatrix sin = TestMatrix::Random(rows, half, random);
      TestMatrix x = before;
      kernels.rotate(pool, x.view(), groups, group_stride, offset,
                     {.cos = cos.view(), .sin = sin.view(), .interleaved = interleaved});
      TestMatrix want = before;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t g = 0; g < groups; ++g) {
          for (int64_t i = 0; i < half; ++i) {
            const int64_t head = g * group_stride + offset;
            const int64_t a = head + (interleaved ? 2 * i : i);
            const int64_t b = head + (interleaved ? 2 * i + 1 : i + half);
            const float c = cos.view().row(r)[i];
            const float s = sin.view().row(r)[i];
            const float* from = before.view().row(r);
            want.view().row(r)[a] = from[a] * c - from[b] * s;
            want.view().row(r)[b] = from[a] * s + from[b] * c;
          }
        }
      }
      for (size_t i = 0; i < x.values.size(); ++i) ASSERT_EQ(x.values[i], want.values[i]);
    }
  }
}

TEST_P(RowKernelsTest, CombineExpertsAddsAWeightedChain) {
  for (const int64_t n : {1, 8, 37, 256}) {
    for (const int32_t top_k : {1, 2, 8}) {
      const TestMatrix y = TestMatrix::Random(50, n, random, 1);
      const int64_t rows = Pick(1, 60);
      std::vector<int32_t> sources;
      std::vector<float> weights;
      for (int64_t i = 0; i < rows * top_k; ++i) {
        sources.push_back(Pick(0, 49));
        weights.push_back(static_cast<float>(Pick(-100, 100)) / 64);
      }
      const TestMatrix before = TestMatrix::Random(rows, n, random, 2);
      TestMatrix out = before;
      kernels.combine_experts(pool, y.view(), sources.data(), weights.data(), top_k, out.view());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          float sum = 0;
          for (auto j = static_cast<size_t>(r * top_k); j < static_cast<size_t>((r + 1) * top_k);
               ++j) {
            sum = std::fma(weights[j], y.view().row(sources[j])[i], sum);
          }
          ASSERT_EQ(out.view().row(r)[i], before.view().row(r)[i] + sum);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowKernelsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
