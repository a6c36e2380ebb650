// How long to wait for another thread, in time that passes while this process runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
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
      : seconds_(seconds),
        left_(seconds),
        next_look_(seconds - seconds / kLooks),
        waits_(of_threads > Processors() ? 2 * kSpins : 0) {}

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

  /// Wait for a thread that may take longer while progress() moves. It is looked at so rarely that
  /// who works does not notice. Empty: as Wait. False: it has not moved for `seconds`, which is
  /// told a 24th of them later at most.
  bool WaitWhileMoves(const std::function<uint64_t()>& progress) {
    if (left_ <= next_look_ && progress) {
      const uint64_t seen = progress();
      if (looked_ && seen_ != seen) left_ = seconds_;
      seen_ = seen;
      looked_ = true;
      next_look_ = left_ - seconds_ / kLooks;
    }
    return Wait();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSpins = 4096;
  static constexpr int kLooks = 24;

  static int Processors() {
    static const auto count = static_cast<int>(UsableProcessors().size());
    return count;
  }

  double seconds_;
  double left_;
  double next_look_;  // once so little is left
  bool looked_ = false;
  uint64_t seen_ = 0;  // the progress, once looked_
  int64_t waits_;
  Clock::time_point last_;
};

}  // namespace outrider
