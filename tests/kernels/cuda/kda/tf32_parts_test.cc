// Float32 numbers in two parts of TF32: what a split loses, and sums of the three products that are
// taken of two numbers, as tensor cores form them, beside double precision.
#include "outrider/kernels/cuda/kda/tf32_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace outrider::cuda {
namespace {

/// What tensor cores read.
float Read(uint32_t bits) { return BitsFloat(bits & kTf32Bits); }

TEST(Tf32Parts, TheyAreTheNumber) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-80, 80);
  double worst = 0;
  int positive = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(normal(random), exponent(random));
    const Tf32Parts parts = SplitForTf32(x);
    const double high = Read(parts.high);
    const double low = Read(parts.low);
    ASSERT_LE(std::abs(high - x), std::abs(x) * 0x1p-11);
    worst = std::max(worst, std::abs(high + low - x) / std::abs(double{x}));
    positive += low * x > 0 ? 1 : 0;
  }
  EXPECT_LE(worst, 0x1p-22);
  // Else the low part has been read with all its bits, and the bound says nothing.
  EXPECT_GT(worst, 0x1p-24);
  EXPECT_NEAR(positive, 50000, 1000);
}

TEST(Tf32Parts, CutsHaveTheSignOfTheNumber) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-80, 80);
  double worst = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(normal(random), exponent(random));
    const Tf32Parts parts = CutForTf32(x);
    const double high = Read(parts.high);
    const double low = Read(parts.low);
    ASSERT_GE(high * x, 0);
    ASSERT_GE(low * x, 0);
    ASSERT_LT(std::abs(high - x), std::abs(x) * 0x1p-10);
    worst = std::max(worst, std::abs(high + low - x) / std::abs(double{x}));
  }
  EXPECT_LE(worst, 0x1p-20);
  EXPECT_GT(worst, 0x1p-22);
}

TEST(Tf32Parts, NumbersOfElevenBitsAreTheirHighPart) {
  for (const float x : {0.0F, 1.0F, -1.5F, 2047.0F, -0x1.FFCp-60F}) {
    for (const Tf32Parts& parts : {SplitForTf32(x), CutForTf32(x)}) {
      EXPECT_EQ(Read(parts.high), x);
      EXPECT_EQ(Read(parts.low), 0.0F);
    }
  }
  // Ties go away from zero.
  EXPECT_EQ(Read(SplitForTf32(0x1.002p+0F).high), 0x1.004p+0F);
  EXPECT_EQ(Read(SplitForTf32(-0x1.002p+0F).high), -0x1.004p+0F);
  for (const float x : {BitsFloat(0x7FFFFFFF), BitsFloat(0xFFFFFFFF), std::nanf(""), INFINITY}) {
    EXPECT_TRUE(std::isnan(Read(SplitForTf32(x).low)));
    EXPECT_TRUE(std::isnan(Read(CutForTf32(x).low)));
  }
}

/// A sum that tensor cores add to: exact but for its end, which is cut off.
float Truncated(double sum) {
  const auto rounded = static_cast<float>(sum);
  return std::abs(double{rounded}) > std::abs(sum) ? std::nextafter(rounded, 0.0F) : rounded;
}

/// The worst error of sums of products, of their terms. split: of the first factors.
double WorstError(Tf32Parts (*split)(float)) {
  constexpr int kSlices = 8;
  constexpr int kSlice = 8;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  double worst = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    double exact = 0;
    double size = 0;
    float high_sum = 0;
    float low_sum = 0;
    for (int slice = 0; slice < kSlices; ++slice) {
      double high = high_sum;
      double low = low_sum;
      for (int i = 0; i < kSlice; ++i) {
        const float x = normal(random);
        const float y = normal(random);
        exact += double{x} * y;
        size += std::abs(double{x} * y);
        const Tf32Parts a = split(x);
        const Tf32Parts b = SplitForTf32(y);
        high += double{Read(a.high)} * Read(b.high);
        low += double{Read(a.low)} * Read(b.high) + double{Read(a.high)} * Read(b.low);
      }
      high_sum = Truncated(high);
      low_sum = Truncated(low);
    }
    worst = std::max(worst, std::abs(double{high_sum} + low_sum - exact) / size);
  }
  return worst;
}

TEST(Tf32Parts, SumsOfThreeProductsAreNearDoublePrecision) {
  EXPECT_LT(WorstError(SplitForTf32), 0x1p-22);
  EXPECT_LT(WorstError(CutForTf32), 0x1p-21);
}

}  // namespace
}  // namespace outrider::cuda
