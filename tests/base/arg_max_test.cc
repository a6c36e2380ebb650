#include "outrider/base/arg_max.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace outrider {
namespace {

TEST(ArgMaxTest, EqualsASequentialSearchAtEveryLength) {
  std::mt19937 random(1);
  for (size_t size = 1; size < 100; ++size) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(size);
      for (float& v : values) v = static_cast<float>(random() % 7) - 9;
      EXPECT_EQ(ArgMax(values), static_cast<size_t>(std::max_element(values.begin(), values.end()) -
                                                    values.begin()));
    }
  }
}

TEST(ArgMaxTest, ForbiddenValues) {
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(ArgMax(std::vector<float>(40, none)), 0U);
  std::vector<float> values(40, none);
  values[37] = -1e30F;
  EXPECT_EQ(ArgMax(values), 37U);
}

TEST(ArgMaxTest, NaNIsNotTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const size_t size : {1, 16, 40}) {
    std::vector<float> values(size, nan);
    EXPECT_EQ(ArgMax(values), 0U);
    values.back() = -3;
    EXPECT_EQ(ArgMax(values), size - 1);
  }
}

}  // namespace
}  // namespace outrider
