#include "outrider/options/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& yaml) {
  try {
    ParseConfig("serve.yaml", yaml);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(ConfigFile, ScalarsSequencesAndNestedMappings) {
  const auto entries = ParseConfig("serve.yaml", R"(
# a comment
port: 9000
api-key: [one, "two"]
speculative-config:
  method: mtp
  num_speculative_tokens: 2
)");
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].key, "port");
  EXPECT_EQ(entries[0].line, 3);
  EXPECT_THAT(entries[0].texts, ElementsAre("9000"));
  EXPECT_FALSE(entries[0].is_sequence);
  EXPECT_THAT(entries[1].texts, ElementsAre("one", "two"));
  EXPECT_TRUE(entries[1].is_sequence);
  EXPECT_EQ(entries[2].key, "speculative-config.method");
  EXPECT_EQ(entries[3].key, "speculative-config.num_speculative_tokens");
  EXPECT_EQ(entries[3].line, 7);
}

TEST(ConfigFile, AnEmptyFileSetsNothing) {
  EXPECT_TRUE(ParseConfig("serve.yaml", "").empty());
  EXPECT_TRUE(ParseConfig("serve.yaml", "# nothing\n").empty());
}

TEST(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_THAT(ErrorOf("port: [1\n"), AllOf(HasSubstr("serve.yaml"), HasSubstr("not YAML")));
  EXPECT_THAT(ErrorOf("- a\n- b\n"), AllOf(HasSubstr("serve.yaml"), HasSubstr("mapping")));
  EXPECT_THAT(ErrorOf("port: 1\n\nport: 2\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("'port' appears twice")));
  EXPECT_THAT(ErrorOf("a: 1\nport:\n"), AllOf(HasSubstr("line 2"), HasSubstr("no value")));
  EXPECT_THAT(ErrorOf("stop:\n  - [a]\n"), AllOf(HasSubstr("line 2"), HasSubstr("'stop'")));
  EXPECT_THAT(ErrorOf("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}"),
              HasSubstr("too deeply"));
  EXPECT_THAT(ErrorOf("a: &x\n  b: *x\n"), HasSubstr("serve.yaml"));
}

TEST(ConfigFile, AMissingFileIsNotFound) {
  try {
    ReadConfigFile("/nonexistent/serve.yaml");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/serve.yaml"));
  }
}

}  // namespace
}  // namespace outrider
