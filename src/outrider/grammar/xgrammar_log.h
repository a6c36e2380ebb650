// What xgrammar warns of while it reads a grammar: parts of it that it would ignore.
#pragma once

#include <string>

namespace outrider {

/// From construction to destruction, the first warning on this thread is kept.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  /// Empty: there was none.
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

}  // namespace outrider
