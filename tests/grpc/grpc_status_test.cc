#include "outrider/grpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

namespace outrider {
namespace {

using ::grpc::StatusCode;
using openai::ApiError;

ApiError ErrorOf(int status, const std::string& code = "") {
  return {.status = status, .message = "why", .param = "", .code = code};
}

TEST(GrpcStatusTest, CodesFollowHttpStatus) {
  EXPECT_EQ(GrpcStatusOf(ErrorOf(400)).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(401)).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(403)).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(404)).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(413)).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(429)).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(500)).error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(503, "shutting_down")).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(GrpcStatusOf(ErrorOf(503, "overloaded")).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(GrpcStatusOf(openai::TooLittleMemory()).error_code(), StatusCode::RESOURCE_EXHAUSTED);
}

TEST(GrpcStatusTest, FieldsHaveTheNamesOfTheDefinitions) {
  const auto message = [](const std::string& param, const std::string& text) {
    return GrpcStatusOf({.status = 400, .message = text, .param = param, .code = ""})
        .error_message();
  };
  EXPECT_EQ(message("max_tokens", "max_tokens: 0 is out of range"),
            "stopping.max_new_tokens: 0 is out of range");
  EXPECT_EQ(message("structured_outputs.regex", "structured_outputs.regex: no"),
            "decoding.regex: no");
  EXPECT_EQ(message("stop_token_ids[2]", "stop_token_ids[2]: no"),
            "stopping.stop_token_ids[2]: no");
  EXPECT_EQ(message("model", "there is no model"), "there is no model");
  EXPECT_EQ(message("token_ids[2]", "token_ids[2]: no"), "token_ids[2]: no");
}

TEST(GrpcStatusTest, ErrorsComeThroughTheirJson) {
  const ApiError error = {
      .status = 503, .message = "a \"quoted\" \u00e9", .param = "", .code = "overloaded"};
  const ::grpc::Status whole = GrpcStatusOf(503, openai::ErrorJson(error));
  EXPECT_EQ(whole.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(whole.error_message(), error.message);
  const ::grpc::Status framed = StatusOfErrorFrame(ErrorFrame(error));
  EXPECT_EQ(framed.error_code(), whole.error_code());
  EXPECT_EQ(framed.error_message(), error.message);
}

// A trailer that is too long would be an error of its own.
TEST(GrpcStatusTest, LongMessagesAreCutBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 10'000) text += "\u00e9";
  const std::string message =
      GrpcStatusOf({.status = 400, .message = text, .param = "", .code = ""}).error_message();
  EXPECT_EQ(message, text.substr(0, 2047) + "...");
}

}  // namespace
}  // namespace outrider
