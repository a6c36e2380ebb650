// How long to wait for another thread, in time that passes while this process runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "outrider/base/processors.h"

namespace outrider {

/// Waits in a loop: spins at first, then lets other threads run. A process that was stopped and
/// goes on has not waited meanwhile.
class Patience {
 public:
  /// of_threads: how many threads at least wait for each other so. Where they have no processor
  /// each, none spins: it would keep from running what it waits for.
  Patience(double seconds, int of_threads)
      : left_(seconds), waits_(of_threads > Processors() ? 2 * kSpins : 0) {}

  /// Waits for a moment. False: `seconds` have passed.
  bool Wait() {
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
  static constexpr int kSpins = 4096;

  static int Processors() {
    static const auto count = static_cast<int>(UsableProcessors().size());
    return count;
  }

  double left_;
  int64_t waits_;
  Clock::time_point last_;
};

}  // namespace outrider
