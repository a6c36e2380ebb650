// The progress of loading weights: one line rewritten in place on a terminal, a few lines of the
// log elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "outrider/base/logging.h"

namespace outrider::cli {

enum class ProgressStyle : uint8_t {
  kRewrite,  // a terminal: the line is drawn over, then ended
  kLines,    // a log: a line at every quarter, and one after a second of silence or more
  kNone,
};

/// kRewrite when standard error is a terminal that gets text, else `otherwise`.
ProgressStyle StandardErrorStyle(LogFormat format, ProgressStyle otherwise);

class LoadProgressPrinter {
 public:
  /// print: writes what the style makes of the progress, for kRewrite pieces of a line.
  LoadProgressPrinter(std::function<void(const std::string& text)> print, ProgressStyle style)
      : print_(std::move(print)), style_(style) {}

  /// Bytes read so far and in all, never falling. Prints where the style says so.
  void Update(int64_t done_bytes, int64_t total_bytes);

 private:
  const std::function<void(const std::string& text)> print_;
  const ProgressStyle style_;
  int last_percent_ = -25;  // one quarter before the first
  bool ended_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_print_ = start_;
};

}  // namespace outrider::cli
