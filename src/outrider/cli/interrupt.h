// Ctrl-C as a flag that a step loop looks at, for commands that run one thing and end.
#pragma once

#include <atomic>
#include <cstdint>

namespace outrider::cli {

/// From construction on, a signal sets the flag: SIGINT, and SIGTERM where the second ends the
/// process. One at a time.
class InterruptFlag {
 public:
  /// What a second signal does. With kSetsTheFlag, SIGINT does what the first did, and interrupts
  /// a read that waits; SIGTERM ends the process at once, as by default.
  enum class Second : uint8_t { kEndsTheProcess, kSetsTheFlag };

  explicit InterruptFlag(Second second = Second::kEndsTheProcess);
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& interrupted() const;

  /// What was interrupted has ended: wait for the next signal.
  void Clear();
};

}  // namespace outrider::cli
