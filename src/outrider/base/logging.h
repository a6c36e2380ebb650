// Log set-up: one line format that people already grep for, or JSON lines.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace outrider {

enum class LogFormat { kText, kJson };

/// Sends logs to stderr. level: "debug", "info", "warning", "error". Text lines look like
/// `INFO 11-21 10:15:02 [engine.cc:120] message`. Throws Error on an unknown level.
void InitLogging(const std::string& level, LogFormat format);

}  // namespace outrider
