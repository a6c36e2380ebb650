#include "outrider/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace outrider {
namespace {

TEST(ErrorTest, AMessageIsOneLineWhateverItQuotes) {
  using std::string_view_literals::operator""sv;
  const Error error = InvalidArgument("no {}", "a\nb\r\tc\x7f\x1b[0m\0d \"ü\\n\""sv);
  EXPECT_EQ(std::string(error.what()), R"(no a\nb\r\tc\u007f\u001b[0m\u0000d "ü\n")");
  EXPECT_EQ(std::string(OutOfMemory("of\nGPU 0").what()), "of\\nGPU 0");
}

}  // namespace
}  // namespace outrider
