// How long to wait for another thread, in time that passes while this process runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace outrider {

/// Waits in a loop: spins at first, then lets other threads run. A process that was stopped and
/// goes on has not waited meanwhile.
class Patience {
 public:
  explicit Patience(double seconds) : left_(seconds) {}

  /// Waits for a moment. False: `seconds` have passed.
  bool Wait() {
    constexpr int kSpins = 4096;
    if (++waits_ <= kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      return true;
    }
    if (waits_ <= 2 * kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    constexpr double kMostOfOneWait = 0.1;
    const auto now = Clock::now();
    if (last_ != Clock::time_point()) {
      left_ -= std::min(kMostOfOneWait, std::chrono::duration<double>(now - last_).count());
    }
    last_ = now;
    return left_ > 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  double left_;
  int64_t waits_ = 0;
  Clock::time_point last_;
};

}  // namespace outrider
