#include "outrider/openai/api_error.h"

#include <fmt/format.h>

#include "outrider/base/json_text.h"

namespace outrider::openai {
namespace {

int StatusOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kTooLarge:
      return 413;
    case ErrorCode::kOverloaded:
    case ErrorCode::kUnavailable:
      return 503;
  }
  return 500;
}

const char* TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  if (status == 503) return "service_unavailable_error";
  if (status >= 500) return "internal_error";
  return "invalid_request_error";
}

const char* AnthropicTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string StringOrNull(const std::string& text) {
  return text.empty() ? "null" : JsonString(text);
}

}  // namespace

ApiError FromError(const Error& error) {
  ApiError result;
  result.status = StatusOf(error.code());
  result.message = error.what();
  if (const auto* request_error = dynamic_cast<const RequestError*>(&error)) {
    result.param = request_error->param();
    result.code = request_error->name();
  }
  if (result.code.empty() && error.code() != ErrorCode::kInvalidArgument) {
    result.code = ErrorCodeName(error.code());
  }
  return result;
}

ApiError TooLittleMemory() {
  return {.status = 503,
          .message = "the server has too little memory for this request now; try again later",
          .param = "",
          .code = "out_of_memory"};
}

std::string ErrorJson(const ApiError& error, ErrorForm form) {
  if (form == ErrorForm::kAnthropic) {
    // Clients act on some of these codes.
    const std::string details =
        error.code.empty()
            ? ""
            : fmt::format(R"(,"details":{{"error_code":{}}})", JsonString(error.code));
    return fmt::format(R"({{"type":"error","error":{{"type":"{}","message":{}{}}}}})",
                       AnthropicTypeOf(error.status), JsonString(error.message), details);
  }
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}})",
                     JsonString(error.message), TypeOf(error.status), StringOrNull(error.param),
                     StringOrNull(error.code));
}

HttpResponse ErrorResponse(const ApiError& error, ErrorForm form) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorJson(error, form);
  if (error.status == 503 || error.status == 429) {
    response.headers.push_back({"Retry-After", "1"});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace outrider::openai
