#include "outrider/batch/token_ref.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

using testing::ElementsAre;

TEST(TokenRefTest, IsATokenOrAPlaceOrNone) {
  const TokenRef known = 7;
  const TokenRef kept = TokenRef::At(7);
  EXPECT_EQ(known.token(), 7);
  EXPECT_FALSE(known.on_device());
  EXPECT_TRUE(kept.on_device());
  EXPECT_EQ(kept.place(), 7);
  EXPECT_NE(kept, known);
  EXPECT_EQ(TokenRef::At(0).place(), 0);
  EXPECT_NE(TokenRef::At(0), TokenRef());
  EXPECT_EQ(TokenRef(), TokenRef(-1));
  EXPECT_FALSE(TokenRef().on_device());
}

// What is on the device is not a number for the host.
TEST(TokenRefDeathTest, AnUnreadTokenIsNotRead) {
  EXPECT_DEATH(static_cast<void>(TokenRef::At(3).token()), "has not read");
  EXPECT_DEATH(static_cast<void>(TokenRef().token()), "has not read");
  EXPECT_DEATH(static_cast<void>(TokenRef(3).place()), "on_device");
  EXPECT_DEATH(static_cast<void>(TokenRef(-2)), "token >= -1");
  const std::vector<TokenRef> tokens = {5, TokenRef::At(2)};
  EXPECT_DEATH(static_cast<void>(KnownTokens(tokens)), "has not read");
}

TEST(TokenRefTest, TokensThatAreKnownAreViewed) {
  const std::vector<int32_t> tokens = {3, 4, 5};
  const TokenRefs refs = tokens;
  EXPECT_EQ(static_cast<const void*>(refs.data()), tokens.data());
  EXPECT_THAT(refs, ElementsAre(3, 4, 5));
  EXPECT_THAT(KnownTokens(refs.subspan(1)), ElementsAre(4, 5));
}

}  // namespace
}  // namespace outrider
