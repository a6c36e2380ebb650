#include "outrider/draft/draft_schedule.h"

#include <gtest/gtest.h>

#include "outrider/base/error.h"

namespace outrider {
namespace {

TEST(DraftScheduleTest, GapsUseTheRangeBelowThem) {
  const DraftSchedule schedule(5, {{2, 4, 3}, {8, 16, 1}, {17, 20, 0}});
  EXPECT_EQ(schedule.TokensFor(1), 5);
  EXPECT_EQ(schedule.TokensFor(2), 3);
  EXPECT_EQ(schedule.TokensFor(7), 3);
  EXPECT_EQ(schedule.TokensFor(8), 1);
  EXPECT_EQ(schedule.TokensFor(17), 0);
  EXPECT_EQ(schedule.TokensFor(500), 0);
  EXPECT_EQ(DraftSchedule(3, {}).TokensFor(500), 3);
}

TEST(DraftScheduleTest, RefusesRangesThatMakeNoSense) {
  EXPECT_THROW(DraftSchedule(3, {{4, 2, 1}}), Error);
  EXPECT_THROW(DraftSchedule(3, {{0, 2, 1}}), Error);
  EXPECT_THROW(DraftSchedule(3, {{1, 4, 1}, {4, 8, 1}}), Error);
  EXPECT_THROW(DraftSchedule(3, {{1, 4, 4}}), Error);
  EXPECT_THROW(DraftSchedule(3, {{1, 4, -1}}), Error);
}

}  // namespace
}  // namespace outrider
