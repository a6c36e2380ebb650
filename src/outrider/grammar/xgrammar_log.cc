// Where xgrammar's messages go, instead of standard error: failures become exceptions with nothing
// but their text, warnings (a token refused, a keyword ignored) go nowhere.
#include "support/logging.h"  // xgrammar's own

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

void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
