// One thread that takes jobs in order: parsing, templates and tokenising of long prompts must not
// hold up the I/O thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace outrider {

class WorkThread {
 public:
  explicit WorkThread(size_t max_waiting);
  /// Drops the jobs that have not begun.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  /// False when `max_waiting` jobs wait already: the job was not taken.
  bool TryAdd(std::function<void()> job);

 private:
  void Run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace outrider
