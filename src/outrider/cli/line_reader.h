// Lines of standard input, where Ctrl-C interrupts the wait for one and not the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace outrider::cli {

enum class LineResult : uint8_t { kLine, kEnd, kInterrupted };

/// Reads a file descriptor by itself: std::getline would not come back from a signal. A terminal
/// stays in its own mode, in which it edits the line.
class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  /// The next line without its end; the last one may have none. kInterrupted: `interrupted` became
  /// true, and what was typed of a line is gone. Throws Error where the input cannot be read.
  LineResult Next(const std::atomic<bool>& interrupted, std::string* line);

 private:
  bool TakeLine(std::string* line);

  const int descriptor_;
  std::string buffer_;  // read, and not given out
};

}  // namespace outrider::cli
