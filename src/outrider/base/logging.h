// Log set-up: one line format that people already grep for, or JSON lines.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace outrider {

enum class LogFormat { kText, kJson };

/// Sends logs to standard error. level: "debug", "info", "warning", "error". Text lines look like
/// `INFO 11-21 10:15:02 [engine.cc:120] message`. Throws Error on an unknown level. No line makes
/// its thread wait for the reader of standard error: where that stalls, lines are dropped, and the
/// next one that is taken says how many.
void InitLogging(const std::string& level, LogFormat format);

/// Writes a line to standard error whatever the log's level is, after the logs before it: as it is,
/// or with LogFormat::kJson as the message of an object.
void PrintLine(spdlog::level::level_enum level, std::string_view text);

/// What PrintLine writes, '\n' included: for a process that must not wait for its threads.
std::string StandardErrorLine(spdlog::level::level_enum level, std::string_view text);

/// Waits until what was logged is written, but not long for a reader that stalls. To be called
/// before the process ends.
void FlushLog();

/// While it lives, what its thread logs as JSON has the member "request_id". One at a time.
class LogRequestId {
 public:
  /// `id` must outlive it.
  explicit LogRequestId(std::string_view id);
  ~LogRequestId();
  LogRequestId(const LogRequestId&) = delete;
  LogRequestId& operator=(const LogRequestId&) = delete;
};

}  // namespace outrider
