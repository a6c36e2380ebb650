#include "outrider/base/random_id.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace outrider {
namespace {

TEST(RandomIdTest, NoTwoAreAlike) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomId();
    EXPECT_EQ(id.size(), 32);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000);
}

}  // namespace
}  // namespace outrider
