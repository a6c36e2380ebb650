#include "outrider/grpc/grpc_loop.h"

#include <utility>

namespace outrider {

GrpcLoop::GrpcLoop() : thread_([this] { Run(); }) {}
GrpcLoop::~GrpcLoop() { Close(); }

void GrpcLoop::Post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    jobs_.push_back(std::move(job));
    if (jobs_.size() > 1) return;
  }
  changed_.notify_one();
}

void GrpcLoop::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void GrpcLoop::Run() {
  for (;;) {
    std::vector<std::function<void()>> jobs;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.swap(jobs_);
    }
    for (std::function<void()>& job : jobs) std::exchange(job, nullptr)();
  }
}

}  // namespace outrider
