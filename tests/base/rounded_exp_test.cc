#include "outrider/base/rounded_exp.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

TEST(RoundedExpTest, IsWithinTwoUnitsOfTheTruth) {
  for (float x = -87.0F; x < 88.7F; x += 0.0137F) {
    const double truth = std::exp(static_cast<double>(x));
    const float nearest = static_cast<float>(truth);
    const float unit = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
    ASSERT_NEAR(RoundedExp(x), truth, 2 * unit) << x;
  }
}

TEST(RoundedExpTest, EndsInZeroAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(RoundedExp(0.0F), 1.0F);
  EXPECT_EQ(RoundedExp(-0.0F), 1.0F);
  EXPECT_EQ(RoundedExp(-kInfinity), 0.0F);
  EXPECT_EQ(RoundedExp(-104.1F), 0.0F);
  EXPECT_EQ(RoundedExp(89.1F), kInfinity);
  EXPECT_EQ(RoundedExp(88.9F), kInfinity);
  EXPECT_EQ(RoundedExp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(RoundedExp(std::numeric_limits<float>::quiet_NaN())));
  // Subnormal numbers, rounded.
  EXPECT_NEAR(RoundedExp(-100.0F), std::exp(-100.0), 0x1p-149);
  EXPECT_GT(RoundedExp(-103.0F), 0.0F);
}

// Other devices are held to these bits by what they compute with them.
TEST(RoundedExpTest, HasTheseBits) {
  EXPECT_EQ(std::bit_cast<uint32_t>(RoundedExp(1.0F)), 0x402DF854U);
  EXPECT_EQ(std::bit_cast<uint32_t>(RoundedExp(-1.0F)), 0x3EBC5AB2U);
}

TEST(RootOfSoftplusTest, IsCloseToTheTruth) {
  for (float x = -80.0F; x < 80.0F; x += 0.0137F) {
    const double truth = std::sqrt(std::log1p(std::exp(static_cast<double>(x))));
    ASSERT_NEAR(RootOfSoftplus(x), truth, 4e-7 * truth) << x;
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(RootOfSoftplus(-kInfinity), 0.0F);
  EXPECT_EQ(RootOfSoftplus(-200.0F), 0.0F);
  EXPECT_EQ(RootOfSoftplus(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(RootOfSoftplus(std::numeric_limits<float>::quiet_NaN())));
}

TEST(RoundedLog1pTest, IsWithinFourUnitsOfTheTruth) {
  for (float x = 0.0F; x <= 1.0F; x += 0.00037F) {
    const double truth = std::log1p(static_cast<double>(x));
    const float nearest = static_cast<float>(truth);
    const float unit = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
    ASSERT_NEAR(RoundedLog1p(x), truth, 4 * unit) << x;
  }
  EXPECT_EQ(RoundedLog1p(0.0F), 0.0F);
  EXPECT_EQ(RoundedLog1p(1e-30F), 1e-30F);
}

}  // namespace
}  // namespace outrider
