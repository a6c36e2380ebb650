// Log set-up: one line format that people already grep for, or JSON lines.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace outrider {

enum class LogFormat { kText, kJson };

/// Sends logs to stderr. level: "debug", "info", "warning", "error". Text lines look like
/// `INFO 11-21 10:15:02 [engine.cc:120] message`. Throws Error on an unknown level.
void InitLogging(const std::string& level, LogFormat format);

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
