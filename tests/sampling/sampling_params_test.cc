#include "outrider/sampling/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "outrider/base/error.h"

namespace outrider {
namespace {

std::string MessageOf(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    params.Validate(100, 5);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(SamplingParamsTest, DefaultsAreValid) {
  EXPECT_EQ(MessageOf([](SamplingParams&) {}), "");
  EXPECT_EQ(MessageOf([](SamplingParams& p) { p.logprobs = 5; }), "");
}

TEST(SamplingParamsTest, ErrorsNameFieldValueAndRange) {
  using testing::AllOf;
  using testing::HasSubstr;
  const auto names = [](const char* field, const char* value) {
    return AllOf(HasSubstr(field), HasSubstr(value));
  };
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.temperature = -1; }), names("temperature", "-1"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.temperature = NAN; }),
              names("temperature", "nan"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_k = -2; }), names("top_k", "-2"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_p = 0; }), names("top_p", "(0, 1]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_p = 1.5F; }), names("top_p", "1.5"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.min_p = 2; }), names("min_p", "2"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.max_tokens = 0; }), names("max_tokens", "0"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop = {""}; }), names("stop", "empty"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop.assign(17, "x"); }), names("stop", "17"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop_token_ids = {100}; }), names("100", "99"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logprobs = 6; }), names("logprobs", "6"));
}

}  // namespace
}  // namespace outrider
