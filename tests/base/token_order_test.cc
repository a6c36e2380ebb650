#include "outrider/base/token_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace outrider {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TokenOrderTest, KeysOrderFloats) {
  const std::vector<float> rising = {std::numeric_limits<float>::quiet_NaN(),
                                     -kInfinity,
                                     -3e38F,
                                     -1.0F,
                                     -1e-45F,
                                     0.0F,
                                     1e-45F,
                                     1.0F,
                                     3e38F,
                                     kInfinity};
  for (size_t i = 1; i < rising.size(); ++i) {
    EXPECT_LT(OrderKey(rising[i - 1]), OrderKey(rising[i])) << i;
  }
  EXPECT_EQ(OrderKey(-0.0F), OrderKey(0.0F));
  EXPECT_EQ(OrderKey(-std::numeric_limits<float>::quiet_NaN()), 0U);
}

TEST(TokenOrderTest, LowerTokensComeFirstAmongEquals) {
  EXPECT_GT(TokenKey(1.5F, 3), TokenKey(1.5F, 4));
  EXPECT_GT(TokenKey(-0.0F, 3), TokenKey(0.0F, 4));
  EXPECT_LT(TokenKey(1.5F, 3), TokenKey(1.6F, 4));
  for (const int32_t token : {0, 1, 154879, std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(KeyToken(TokenKey(-7.25F, token)), token);
  }
}

// Part of the contract, as it decides which tokens top_p and min_p keep.
TEST(TokenOrderTest, WeightsAreWhatTheyWere) {
  EXPECT_EQ(TokenWeight(0.0F), kWeightOne);
  EXPECT_EQ(TokenWeight(-0x1p-24F), 0xFFFFFF0000U);
  EXPECT_EQ(TokenWeight(-0.1F), 0xE7A36D0000U);
  EXPECT_EQ(TokenWeight(-1.0F), 0x5E2D590000U);
  EXPECT_EQ(TokenWeight(-5.0F), 0x1B993FE00U);
  EXPECT_EQ(TokenWeight(-20.0F), 0x8DAU);
  EXPECT_EQ(TokenWeight(-27.7F), 1U);
  for (const float d : {-27.8F, -28.0F, -28.1F, -3e38F, -kInfinity}) {
    EXPECT_EQ(TokenWeight(d), 0U) << d;
  }
  EXPECT_EQ(TokenWeight(std::numeric_limits<float>::quiet_NaN()), 0U);
}

TEST(TokenOrderTest, WeightsAreExponentials) {
  for (float d = 0; d > -28; d -= 1e-4F) {
    const double truth = std::exp(static_cast<double>(d)) * 0x1p40;
    ASSERT_NEAR(static_cast<double>(TokenWeight(d)), truth, truth * 0x1p-22 + 1) << d;
  }
}

TEST(TokenOrderTest, Thresholds) {
  EXPECT_EQ(MinPWeight(0.0F), 0U);
  EXPECT_EQ(MinPWeight(0.25F), kWeightOne / 4);
  EXPECT_EQ(MinPWeight(1.0F), kWeightOne);
  EXPECT_EQ(TopPLimit(kWeightOne * 3, 0.5F), kWeightOne * 3 / 2);
  EXPECT_EQ(TopPLimit(kWeightOne * 3, 1.0F), kWeightOne * 3);
  EXPECT_EQ(TopPLimit(kWeightOne * 3, 1e-12F), 0U);
  EXPECT_EQ(TopPLimit(uint64_t{1} << 63, 1.0F), uint64_t{1} << 63);
  EXPECT_EQ(TopPLimit(123456789012345, 0.95F), 117283948090008U);
  EXPECT_NEAR(static_cast<double>(TopPLimit(123456789012345, 0.95F)),
              123456789012345 * static_cast<double>(0.95F), 123456789012345 * 0x1p-32 + 1);
}

}  // namespace
}  // namespace outrider
