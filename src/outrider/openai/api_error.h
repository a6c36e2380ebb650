// Errors as OpenAI clients read them: an HTTP status and
// {"error":{"message","type","param","code"}}. Anthropic's clients get theirs.
#pragma once

#include <cstdint>
#include <string>

#include "outrider/base/error.h"
#include "outrider/http/http_message.h"

namespace outrider::openai {

/// A request that cannot be served, with the field that is to blame.
class RequestError : public Error {
 public:
  RequestError(ErrorCode code, std::string param, const std::string& message, std::string name = "")
      : Error(code, message), param_(std::move(param)), name_(std::move(name)) {}

  const std::string& param() const { return param_; }  // "" when it is not about one field
  const std::string& name() const { return name_; }    // "context_length_exceeded", ...; may be ""

 private:
  std::string param_;
  std::string name_;
};

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // "": null
  std::string code;   // "": null
};

/// How an error is spelled: as OpenAI's clients read it, or as Anthropic's do
/// ({"type":"error","error":{"type","message"}}).
enum class ErrorForm : uint8_t { kOpenAi, kAnthropic };

ApiError FromError(const Error& error);

/// For a request whose work found too little memory.
ApiError TooLittleMemory();

/// The error object as JSON text, without a line end.
std::string ErrorJson(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);

/// A whole response; 429 and 503 carry Retry-After.
HttpResponse ErrorResponse(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);

}  // namespace outrider::openai
