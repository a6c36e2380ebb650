// When work is worth handing to other threads, and in pieces of what size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "outrider/base/function_ref.h"
#include "outrider/base/thread_pool.h"

namespace outrider::cpu {

/// Work below this runs on the caller: waking and joining the team costs one to two microseconds.
inline constexpr double kInlineNanoseconds = 4000;

/// The time that one task of a list should take: short enough to balance, long enough that taking
/// it costs nothing. One thread has nothing to balance, and every task interrupts its reading
/// ahead.
inline double TaskNanoseconds(double total, int threads) {
  return threads == 1 ? total : std::max(1500.0, total / (32.0 * threads));
}

/// Runs task(0) .. task(count - 1), on the team if all of it takes `nanoseconds` worth sharing.
inline void RunTasks(ThreadPool& pool, int64_t count, double nanoseconds,
                     FunctionRef<void(int64_t)> task) {
  if (nanoseconds < kInlineNanoseconds) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  pool.ParallelFor(count, [&](int64_t i, int /*thread*/) { task(i); });
}

}  // namespace outrider::cpu
