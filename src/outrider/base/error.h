// Errors that a user can cause (Error, thrown) and conditions that only a bug can break
// (OUTRIDER_CHECK, aborts). A message says what was wrong, where, and what would be right.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace outrider {

enum class ErrorCode {
  kInvalidArgument,  // a flag, file or request that can never work; HTTP 400, exit code 2
  kNotFound,         // a model, file or route that does not exist; HTTP 404, exit code 2
  kTooLarge,         // over a size limit; HTTP 413, exit code 2
  kOverloaded,       // a queue is full, try again later; HTTP 503
  kUnavailable,      // loading, draining or stopped; HTTP 503
};

/// "invalid_argument", "not_found", ...: the name used in logs and in error bodies.
const char* ErrorCodeName(ErrorCode code);

/// Its message is one line, whatever it quotes: control characters stand in it as in JSON, "\n".
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string_view message);
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// A device has less memory than was asked for.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& message) : Error(ErrorCode::kUnavailable, message) {}
};

template <typename... Args>
Error InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Error NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorCode::kNotFound, fmt::format(format, std::forward<Args>(args)...));
}

/// Prints the failed expression, its place and message to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* expression, const char* file, int line,
                              const std::string& message);

}  // namespace outrider

// OUTRIDER_CHECK(condition) or OUTRIDER_CHECK(condition, "format {}", value).
#define OUTRIDER_CHECK(condition, ...) \
  (static_cast<bool>(condition)        \
       ? void(0)                       \
       : ::outrider::CheckFailed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)))
