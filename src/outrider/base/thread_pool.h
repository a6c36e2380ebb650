// The engine's compute threads: a fixed team that runs one task list at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "outrider/base/function_ref.h"

namespace outrider {

/// A team of `size()` threads, the caller's included. Between task lists the others (workers) spin
/// for a bounded time, then sleep. Which thread runs a task is not fixed: a task's result must not
/// depend on it.
class ThreadPool {
 public:
  /// threads >= 1; 1 means that everything runs on the caller. With `processors`, one per thread,
  /// worker t is bound to processors[t]; the caller, who has other things to do, never is. A
  /// binding that the system refuses is logged.
  explicit ThreadPool(int threads, std::span<const int> processors = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// A number that moves whenever a task begins. Any thread may look whether this team works.
  uint64_t progress() const {
    return (uint64_t{generation_.load(std::memory_order_relaxed)} << 32) -
           static_cast<uint64_t>(unclaimed_.load(std::memory_order_relaxed)) +
           on_caller_.load(std::memory_order_relaxed);
  }

  /// Runs task(index, thread) for index 0..count-1, thread in 0..size()-1; returns when all are
  /// done. One caller at a time; a task must not throw and must not call back into the pool.
  void ParallelFor(int64_t count, FunctionRef<void(int64_t index, int thread)> task);

  /// Runs tasks that may throw, as those that read files: all run; then the first exception
  /// comes out.
  void ParallelForThrowing(int64_t count, FunctionRef<void(int64_t index)> task);

 private:
  using Task = FunctionRef<void(int64_t, int)>;

  void WorkerLoop(int thread);
  void RunTasks(int thread);

  std::vector<std::thread> workers_;
  // Written before a list is published and read only by those who claimed one of its tasks: until
  // all claimed tasks are reported, the caller does not return.
  const Task* task_ = nullptr;
  int64_t count_ = 0;
  alignas(64) std::atomic<int64_t> unclaimed_{0};    // publishes a list; below 0 once it is used up
  alignas(64) std::atomic<int64_t> unfinished_{0};   // tasks that nobody has reported as done
  alignas(64) std::atomic<uint32_t> generation_{0};  // grows by one per task list
  std::atomic<uint64_t> on_caller_{0};               // tasks of lists that have no other thread
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace outrider
