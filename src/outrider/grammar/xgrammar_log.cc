// Where xgrammar's messages go, instead of standard error: failures become exceptions with nothing
// but their text; warnings go to whoever asks for them (xgrammar_log.h), and nowhere else.
#include "outrider/grammar/xgrammar_log.h"

#include <cctype>
#include <string_view>

#include "support/logging.h"  // xgrammar's own

namespace outrider {
namespace {

thread_local std::string* first_warning = nullptr;

/// A backslash before a character that needs none: the character is matched, as was meant.
bool IsHarmless(const std::string& message) {
  constexpr std::string_view kEscape = "Escape sequence '\\";
  const size_t at = message.find(kEscape);
  const size_t end = at + kEscape.size();
  return at != std::string::npos && end < message.size() &&
         std::isalnum(static_cast<unsigned char>(message[end])) == 0;
}

}  // namespace

XgrammarWarnings::XgrammarWarnings() { first_warning = &first_; }

XgrammarWarnings::~XgrammarWarnings() { first_warning = nullptr; }

}  // namespace outrider

namespace xgrammar {
namespace {

// xgrammar catches LogFatalError in places.
class PlainError : public LogFatalError {
 public:
  PlainError(const std::string& file, int line, const std::string& message)
      : LogFatalError(file, line, message), message_(message) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw PlainError(file, line, message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  std::string* first = outrider::first_warning;
  if (level < XGRAMMAR_LOG_LEVEL_WARNING || first == nullptr || !first->empty()) return;
  if (!outrider::IsHarmless(message)) *first = message;
}

}  // namespace xgrammar
