// Which of the limits on a request's drafts is told.
#include "outrider/execute/draft_limit.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(DraftLimitTest, TheLastThatLeftFewerIsTold) {
  EXPECT_EQ(LimitOf({3, 3, 3, 3, 3, 3}), DraftLimit::kNone);
  EXPECT_EQ(LimitOf({3, 2, 2, 2, 2, 2}), DraftLimit::kSchedule);
  EXPECT_EQ(LimitOf({3, 3, 2, 2, 2, 2}), DraftLimit::kRequest);
  EXPECT_EQ(LimitOf({3, 2, 1, 1, 1, 1}), DraftLimit::kRequest);
  EXPECT_EQ(LimitOf({3, 3, 2, 1, 1, 1}), DraftLimit::kLength);
  EXPECT_EQ(LimitOf({3, 3, 3, 3, 0, 0}), DraftLimit::kDrafter);
  EXPECT_EQ(LimitOf({3, 2, 2, 2, 1, 0}), DraftLimit::kGrammar);
  EXPECT_EQ(LimitOf({3, 2, 2, 2, 1, 1}), DraftLimit::kDrafter);
  EXPECT_EQ(LimitOf({}), DraftLimit::kNone);  // without a drafter
}

TEST(DraftLimitTest, EachHasAName) {
  EXPECT_EQ(DraftLimitName(DraftLimit::kNone), "");
  EXPECT_EQ(DraftLimitName(DraftLimit::kPrompt), "prompt");
  EXPECT_EQ(DraftLimitName(DraftLimit::kSchedule), "schedule");
  EXPECT_EQ(DraftLimitName(DraftLimit::kGrammar), "grammar");
}

}  // namespace
}  // namespace outrider
