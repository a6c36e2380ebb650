// Log lines of the library on their way to Python's `logging`: no thread of an engine waits for the
// interpreter.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace outrider::python {

struct LogLine {
  int level = 0;  // as Python's logging has it: 10 debug, 20 info, 30 warning, 40 error
  std::string file;
  int line = 0;
  std::string message;
};

/// Sends the library's log to TakeLog; warnings and errors, until SetLogLevel says otherwise.
void KeepLog();

/// Lines of a lower level (Python's numbers) are dropped where they come about.
void SetLogLevel(int level);

/// The lines that came; waits for one, at most `wait`. Without the GIL.
std::vector<LogLine> TakeLog(std::chrono::duration<double> wait);

/// Makes a TakeLog that waits return.
void WakeLogReader();

}  // namespace outrider::python
