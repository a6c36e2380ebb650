#include "outrider/base/thread_pool.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>
#include <mutex>

#include "outrider/base/error.h"
#include "outrider/base/processors.h"

namespace outrider {

namespace {

// Long enough to bridge the host work between two steps, short enough that an idle server costs
// nothing.
constexpr auto kSpinTime = std::chrono::microseconds(100);

inline void Pause() { __builtin_ia32_pause(); }

/// Spins until ready() holds or kSpinTime has passed; returns what ready() said last.
template <typename Ready>
bool SpinUntil(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::span<const int> processors) {
  OUTRIDER_CHECK(threads >= 1 && (processors.empty() || std::ssize(processors) == threads));
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) {
    workers_.emplace_back([this, t] { WorkerLoop(t); });
    if (processors.empty()) continue;
    const int processor = processors[static_cast<size_t>(t)];
    if (!PinThread(workers_.back(), processor)) {
      spdlog::warn("compute thread {} could not be bound to processor {}", t, processor);
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::RunTasks(int thread) {
  int64_t done = 0;
  for (;;) {
    const int64_t left = unclaimed_.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) break;
    (*task_)(count_ - left, thread);
    ++done;
  }
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_release);
}

void ThreadPool::ParallelFor(int64_t count, FunctionRef<void(int64_t, int)> task) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    uint64_t begun = on_caller_.load(std::memory_order_relaxed);  // nobody else writes it
    for (int64_t i = 0; i < count; ++i) {
      on_caller_.store(++begun, std::memory_order_relaxed);
      task(i, 0);
    }
    return;
  }
  task_ = &task;
  count_ = count;
  unfinished_.store(count, std::memory_order_relaxed);
  unclaimed_.store(count, std::memory_order_release);
  generation_.fetch_add(1);  // seq_cst: pairs with the sleeper's registration below
  if (sleeping_.load() > 0) generation_.notify_all();
  RunTasks(0);
  // Only tasks that someone took are waited for: a thread that sleeps or has no processor delays
  // nobody. One that takes long has lost its processor to another process: then give it ours.
  const auto done = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
  while (!SpinUntil(done)) std::this_thread::yield();
}

void ThreadPool::ParallelForThrowing(int64_t count, FunctionRef<void(int64_t)> task) {
  std::mutex mutex;
  std::exception_ptr failure;
  ParallelFor(count, [&](int64_t i, int) {
    try {
      task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(changed)) {
      sleeping_.fetch_add(1);
      generation_.wait(seen);
      sleeping_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    RunTasks(thread);
  }
}

}  // namespace outrider
