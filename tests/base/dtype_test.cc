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

/// Codes `bits` in rising order of value, from 0: each comes back, and what lies between two goes
/// to the nearer one, the middle to the even one.
void ExpectNearest(int last, float (*to_float)(uint8_t), uint8_t (*from_float)(float), int sign) {
  for (int code = 0; code <= last; ++code) {
    const float value = to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(from_float(value), code);
    EXPECT_EQ(from_float(-value), code | sign);
    if (code == last) break;
    const float middle = (value + to_float(static_cast<uint8_t>(code + 1))) / 2;
    EXPECT_EQ(from_float(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(from_float(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(from_float(std::nextafter(middle, 1000.0F)), code + 1);
  }
}

TEST(DTypeTest, FloatsBecomeTheNearestFloat8AndFloat4) {
  ExpectNearest(0x7e, Float8E4M3ToFloat, ToFloat8E4M3, 0x80);
  EXPECT_EQ(ToFloat8E4M3(1e9F), 0x7e);
  EXPECT_EQ(ToFloat8E4M3(-449), 0xfe);
  EXPECT_TRUE(std::isnan(Float8E4M3ToFloat(ToFloat8E4M3(NAN))));
  ExpectNearest(7, Float4E2M1ToFloat, ToFloat4E2M1, 8);
  EXPECT_EQ(ToFloat4E2M1(100), 7);
  EXPECT_EQ(ToFloat4E2M1(-7), 15);
}

}  // namespace
}  // namespace outrider
