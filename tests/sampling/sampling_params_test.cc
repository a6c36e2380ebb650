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
  EXPECT_EQ(MessageOf([](SamplingParams& p) { p.temperature = 1e38F; }), "");
  EXPECT_EQ(MessageOf([](SamplingParams& p) {
              p.repetition_penalty = 100;
              p.presence_penalty = -2;
              p.frequency_penalty = 2;
              p.logit_bias = {{0, -100}, {99, 100}};
              p.bad_words = {{99}, {0, 0}};
              p.allowed_token_ids = {{99}};
              p.min_tokens = p.max_tokens = 3;
              p.prompt_logprobs = 5;
            }),
            "");
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
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.temperature = INFINITY; }),
              names("temperature", "inf"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_k = -2; }), names("top_k", "-2"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_p = 0; }), names("top_p", "(0, 1]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.top_p = 1.5F; }), names("top_p", "1.5"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.min_p = 2; }), names("min_p", "2"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.max_tokens = 0; }), names("max_tokens", "0"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop = {""}; }), names("stop", "empty"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop.assign(17, "x"); }), names("stop", "17"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.stop_token_ids = {100}; }), names("100", "99"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logprobs = 6; }), names("logprobs", "6"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.prompt_logprobs = -1; }),
              names("prompt_logprobs", "-1"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.repetition_penalty = 0; }),
              names("repetition_penalty is 0", "[0.01, 100]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.repetition_penalty = NAN; }),
              names("repetition_penalty", "nan"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.presence_penalty = 2.5F; }),
              names("presence_penalty is 2.5", "[-2, 2]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.frequency_penalty = -3; }),
              names("frequency_penalty is -3", "[-2, 2]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logit_bias = {{5, 101}}; }),
              names("logit_bias of token 5 is 101", "[-100, 100]"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logit_bias = {{5, NAN}}; }),
              names("logit_bias", "nan"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logit_bias = {{100, 1}}; }),
              names("logit_bias holds 100", "0 to 99"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.logit_bias = {{4, 1}, {4, 2}}; }),
              names("logit_bias holds token 4 twice", "once"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.bad_words = {{1}, {}}; }),
              names("bad_words", "empty"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.bad_words = {{1, -1}}; }),
              names("bad_words holds -1", "0 to 99"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.bad_words.assign(1025, {1}); }),
              names("bad_words is 1025", "1024"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.allowed_token_ids.emplace(); }),
              names("allowed_token_ids", "empty"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.allowed_token_ids = {{100}}; }),
              names("allowed_token_ids holds 100", "0 to 99"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.min_tokens = 17; }),
              names("min_tokens is 17", "max_tokens, which is 16"));
  EXPECT_THAT(MessageOf([](SamplingParams& p) { p.min_tokens = -1; }), names("min_tokens", "-1"));
}

}  // namespace
}  // namespace outrider
