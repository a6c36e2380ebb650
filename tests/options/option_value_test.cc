#include "outrider/options/option_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Function>
std::string ErrorOf(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(OptionValue, IntegersKeepToTheirRange) {
  EXPECT_EQ(ParseInteger("--port", "8000", 0, 65535), 8000);
  EXPECT_EQ(ParseInteger("--port", " 7 ", 0, 65535), 7);
  EXPECT_THAT(ErrorOf([] { ParseInteger("--port", "65536", 0, 65535); }),
              AllOf(HasSubstr("--port"), HasSubstr("65536"), HasSubstr("from 0 to 65535")));
  EXPECT_THAT(ErrorOf([] { ParseInteger("--max-tokens", "0", 1, 2147483647); }),
              HasSubstr("at least 1"));
  for (const std::string text : {"", "x", "1.5", "12a", "99999999999999999999", "0x10"}) {
    EXPECT_THAT(ErrorOf([&] { ParseInteger("--port", text, 0, 65535); }),
                AllOf(HasSubstr("--port"), HasSubstr("'" + text + "'"), HasSubstr("whole number")));
  }
}

TEST(OptionValue, UnsignedTakesAll64Bits) {
  EXPECT_EQ(ParseUnsigned("--seed", "18446744073709551615"), 18446744073709551615U);
  EXPECT_THAT(ErrorOf([] { ParseUnsigned("--seed", "-1"); }), HasSubstr("--seed"));
}

TEST(OptionValue, Numbers) {
  EXPECT_DOUBLE_EQ(ParseNumber("--top-p", "0.95", 0, 1), 0.95);
  EXPECT_THAT(ErrorOf([] { ParseNumber("--top-p", "1.01", 0, 1); }), HasSubstr("from 0 to 1"));
  for (const std::string text : {"nan", "inf", "one", "", "0.5x"}) {
    EXPECT_THAT(ErrorOf([&] { ParseNumber("--top-p", text, 0, 1); }), HasSubstr("not a number"));
  }
}

TEST(OptionValue, SizesWithUnits) {
  EXPECT_EQ(ParseSize("s", "123"), 123);
  EXPECT_EQ(ParseSize("s", "512M"), int64_t{512} << 20);
  EXPECT_EQ(ParseSize("s", "4GiB"), int64_t{4} << 30);
  EXPECT_EQ(ParseSize("s", "4 gib"), int64_t{4} << 30);
  EXPECT_EQ(ParseSize("s", "1.5g"), int64_t{3} << 29);
  EXPECT_EQ(ParseSize("s", "2GB"), 2'000'000'000);
  EXPECT_EQ(ParseSize("s", "1T"), int64_t{1} << 40);
  for (const std::string text : {"", "G", "4X", "4GiBs", "four", "4 4"}) {
    EXPECT_THAT(ErrorOf([&] { ParseSize("--kv-cache-memory-bytes", text); }),
                AllOf(HasSubstr("--kv-cache-memory-bytes"), HasSubstr("512M")));
  }
  for (const std::string text : {"0", "-1G", "1e30", "inf", "nan", "0.2"}) {
    EXPECT_THAT(ErrorOf([&] { ParseSize("--kv-cache-memory-bytes", text); }),
                HasSubstr("out of range"));
  }
}

TEST(OptionValue, Switches) {
  for (const char* text : {"true", "Yes", "ON", "1"}) EXPECT_TRUE(ParseSwitch("s", text));
  for (const char* text : {"false", "no", "Off", "0"}) EXPECT_FALSE(ParseSwitch("s", text));
  EXPECT_THAT(ErrorOf([] { ParseSwitch("OUTRIDER_JSON", "maybe"); }),
              AllOf(HasSubstr("OUTRIDER_JSON"), HasSubstr("'maybe'")));
}

TEST(OptionValue, ChoicesSuggestTheNearest) {
  const std::vector<std::string> types = {"auto", "float32", "bfloat16"};
  EXPECT_EQ(ParseChoice("--dtype", "bfloat16", types), 2U);
  EXPECT_THAT(ErrorOf([&] { ParseChoice("--dtype", "bloat16", types); }),
              AllOf(HasSubstr("auto, float32, bfloat16"), HasSubstr("did you mean bfloat16?")));
}

TEST(OptionValue, IntegerLists) {
  EXPECT_THAT(ParseIntegerList("--spec-tokens", "0, 1,3", 0, 16), ElementsAre(0, 1, 3));
  EXPECT_THAT(ErrorOf([] { ParseIntegerList("--spec-tokens", "", 0, 16); }),
              HasSubstr("holds no number"));
  EXPECT_THAT(ErrorOf([] { ParseIntegerList("--spec-tokens", "1,99", 0, 16); }), HasSubstr("99"));
}

TEST(OptionValue, SuggestionsAreCloseOrAbsent) {
  const std::vector<std::string> names = {"max-model-len", "max-num-seqs", "port"};
  EXPECT_EQ(Suggestion("max-modle-len", names), "; did you mean max-model-len?");
  EXPECT_EQ(Suggestion("prot", names), "; did you mean port?");
  EXPECT_EQ(Suggestion("tensor-parallel-size", names), "");
}

}  // namespace
}  // namespace outrider
