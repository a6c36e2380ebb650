#include "outrider/base/random.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(RandomTest, PhiloxMatchesThePublishedTestVectors) {
  // Random123's known-answer tests for philox4x32-10.
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~uint64_t{0}, {~0U, ~0U, ~0U, ~0U}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomTest, UniformIsInsideTheOpenIntervalAndUnbiased) {
  double sum = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = UniformDouble(42, i, RandomStream::kTarget);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.004);
}

TEST(RandomTest, StreamsAndSeedsDiffer) {
  EXPECT_NE(UniformDouble(1, 5, RandomStream::kTarget), UniformDouble(1, 5, RandomStream::kDraft));
  EXPECT_NE(UniformDouble(1, 5, RandomStream::kTarget), UniformDouble(2, 5, RandomStream::kTarget));
  EXPECT_NE(UniformDouble(1, 5, RandomStream::kTarget), UniformDouble(1, 6, RandomStream::kTarget));
}

}  // namespace
}  // namespace outrider
