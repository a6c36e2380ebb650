#include "outrider/base/byte_size.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(ByteSize, Text) {
  EXPECT_EQ(ByteSizeText(0), "0 B");
  EXPECT_EQ(ByteSizeText(1023), "1023 B");
  EXPECT_EQ(ByteSizeText(1024), "1.0 KiB");
  EXPECT_EQ(ByteSizeText((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(ByteSizeText(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(ByteSizeText(int64_t{5} << 50), "5120.0 TiB");
}

}  // namespace
}  // namespace outrider
