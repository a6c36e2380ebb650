#include "outrider/server/work_thread.h"

#include <utility>

namespace outrider {

WorkThread::WorkThread(size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Run(); }) {}

WorkThread::~WorkThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool WorkThread::TryAdd(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (jobs_.size() >= max_waiting_) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void WorkThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace outrider
