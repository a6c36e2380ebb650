#include "outrider/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace outrider {
namespace {

TEST(DTypeTest, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(RoundToBFloat16(1.0F), 1.0F);
  EXPECT_EQ(RoundToBFloat16(1.0F + 0x1p-9F), 1.0F);  // below half a unit
  EXPECT_EQ(RoundToBFloat16(1.0F + 0x1p-8F), 1.0F);  // a tie goes to even
  EXPECT_EQ(RoundToBFloat16(1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);
  EXPECT_TRUE(std::isnan(RoundToBFloat16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(RoundToBFloat16(std::numeric_limits<float>::max())));
}

TEST(DTypeTest, EveryBFloat16SurvivesTheRoundTrip) {
  for (uint32_t b = 0; b < 0x10000; ++b) {
    const BFloat16 x{static_cast<uint16_t>(b)};
    if (std::isnan(ToFloat(x))) continue;
    EXPECT_EQ(ToBFloat16(ToFloat(x)).bits, b);
  }
}

TEST(DTypeTest, HalfAndFloat8KnownValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0F);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24F);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0F);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0F);
  EXPECT_TRUE(std::isinf(HalfToFloat(0x7c00)));
  EXPECT_EQ(Float8E4M3ToFloat(0x38), 1.0F);
  EXPECT_EQ(Float8E4M3ToFloat(0x7e), 448.0F);
  EXPECT_EQ(Float8E4M3ToFloat(0x01), 0x1p-9F);
  EXPECT_EQ(Float8E4M3ToFloat(0xb8), -1.0F);
  EXPECT_TRUE(std::isnan(Float8E4M3ToFloat(0x7f)));
}

}  // namespace
}  // namespace outrider
