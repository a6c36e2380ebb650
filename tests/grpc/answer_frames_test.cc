#include "outrider/grpc/answer_frames.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace outrider {
namespace {

TEST(AnswerFramesTest, AreTakenInOrder) {
  std::string body;
  AppendFrame(FrameKind::kMessage, "one", &body);
  AppendFrame(FrameKind::kMessage, "", &body);
  AppendFrame(FrameKind::kError, std::string(100'000, '\0'), &body);
  std::string_view rest = body;
  EXPECT_EQ(TakeFrame(&rest)->bytes, "one");
  EXPECT_EQ(TakeFrame(&rest)->bytes, "");
  const auto last = TakeFrame(&rest);
  EXPECT_EQ(last->kind, FrameKind::kError);
  EXPECT_EQ(last->bytes.size(), 100'000);
  EXPECT_FALSE(TakeFrame(&rest));
}

}  // namespace
}  // namespace outrider
