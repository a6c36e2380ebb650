#include "outrider/base/arg_max.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
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

TEST(HasNanTest, OneOfManyIsFoundAtEveryPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const size_t size : {1, 16, 40}) {
    std::vector<float> values(size, -infinity);
    values.back() = infinity;
    EXPECT_FALSE(HasNan(values));
    for (size_t i = 0; i < size; ++i) {
      const float before = std::exchange(values[i], i % 2 == 0 ? nan : -nan);
      EXPECT_TRUE(HasNan(values)) << i;
      values[i] = before;
    }
  }
}

}  // namespace
}  // namespace outrider
