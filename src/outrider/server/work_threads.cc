#include "outrider/server/work_threads.h"

#include <utility>

namespace outrider {

void ClientQueues::Push(std::string_view client, Job job) {
  const auto [found, is_new] = by_name_.try_emplace(std::string(client));
  if (is_new) found->second = clients_.insert(clients_.end(), {std::string(client), {}});
  found->second->jobs.push_back(std::move(job));
}

ClientQueues::Job ClientQueues::Pop() {
  Client& client = clients_.front();
  Job job = std::move(client.jobs.front());
  client.jobs.pop_front();
  if (client.jobs.empty()) {
    by_name_.erase(client.name);
    clients_.pop_front();
  } else {
    clients_.splice(clients_.end(), clients_, clients_.begin());
  }
  return job;
}

size_t ClientQueues::CountOf(std::string_view client) const {
  const auto found = by_name_.find(std::string(client));
  return found == by_name_.end() ? 0 : found->second->jobs.size();
}

WorkThreads::WorkThreads(const WorkOptions& options) : options_(options) {
  for (int i = 0; i < options.num_threads + options.num_large_threads; ++i) {
    threads_.emplace_back([this, i] { Run(/*takes_large=*/i >= options_.num_threads); });
  }
}

WorkThreads::~WorkThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkThreads::TryAdd(std::string_view client, size_t bytes, std::function<void()> job) {
  const bool is_large = options_.num_large_threads > 0 && bytes > options_.large_bytes;
  {
    const std::lock_guard lock(mutex_);
    const size_t own = small_.CountOf(client) + large_.CountOf(client);
    if (num_waiting_ >= options_.max_waiting || 2 * own >= options_.max_waiting) return false;
    (is_large ? large_ : small_).Push(client, std::move(job));
    ++num_waiting_;
  }
  changed_.notify_all();  // one thread might not take this kind
  return true;
}

void WorkThreads::Run(bool takes_large) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [&] { return stopping_ || !small_.empty() || (takes_large && !large_.empty()); });
    if (stopping_) return;
    ClientQueues& queues = takes_large && !large_.empty() ? large_ : small_;
    std::function<void()> job = queues.Pop();
    --num_waiting_;
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace outrider
