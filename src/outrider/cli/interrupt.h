// Ctrl-C as a flag that a step loop looks at, for commands that run one thing and end.
#pragma once

#include <atomic>

namespace outrider::cli {

/// From construction on, the first SIGINT or SIGTERM sets the flag, and the second ends the
/// process. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& interrupted() const;
};

}  // namespace outrider::cli
