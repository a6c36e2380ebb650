#include "outrider/base/error.h"

#include <cstdio>
#include <cstdlib>

#include "outrider/base/logging.h"

namespace outrider {

namespace {

std::string InOneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else if (c == '\r') {
      line += "\\r";
    } else if (c == '\t') {
      line += "\\t";
    } else {
      line += fmt::format("\\u{:04x}", byte);
    }
  }
  return line;
}

}  // namespace

Error::Error(ErrorCode code, std::string_view message)
    : std::runtime_error(InOneLine(message)), code_(code) {}

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kTooLarge:
      return "too_large";
    case ErrorCode::kOverloaded:
      return "overloaded";
    case ErrorCode::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

void CheckFailed(const char* expression, const char* file, int line, const std::string& message) {
  FlushLog();
  const std::string text = StandardErrorLine(
      spdlog::level::critical, fmt::format("{}:{}: check failed: {}{}{}", file, line, expression,
                                           message.empty() ? "" : ": ", message));
  // Not through the log: its thread may be the one that failed.
  std::fputs(text.c_str(), stderr);
  std::abort();
}

}  // namespace outrider
